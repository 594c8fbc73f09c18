// One message of a conversation.

const LONG = 1400; // characters of a message that are shown at first

function message(bubble) {
  if (bubble.role === "note") return [el("p", { class: "note" }, bubble.text)];
  const parts = [];
  if (bubble.reasoning) parts.push(folded("reasoning", "reasoning", bubble.reasoning));
  if (bubble.text) parts.push(bubble.role === "system" ? folded("system", "system prompt", bubble.text) : longText(bubble.text));
  for (const call of bubble.calls ?? []) parts.push(callOf(call));
  if (!parts.length) parts.push(el("div", { class: "text dim" }, "(empty)"));
  return [el("div", { class: `message ${bubble.role}` }, el("span", { class: "role" }, bubble.role), el("div", { class: "body" }, ...parts))];
}

function folded(kind, name, text) {
  const first = text.trim().split("\n")[0];
  const details = el("details", { class: kind }, el("summary", {}, el("span", {}, name), el("span", { class: "peek" }, ` ${clipped(first, 90)}`)));
  details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(longText(text)));
  return details;
}

function callOf(call) {
  const open = call.indexOf("(");
  return el("code", { class: "call" }, el("b", {}, open < 0 ? call : call.slice(0, open)), open < 0 ? "" : longInline(call.slice(open)));
}

const longInline = (text) => clipped(text, 4000);

function longText(text) {
  const box = el("div", { class: "text" }, text.length > LONG * 1.3 ? `${text.slice(0, LONG)}…` : text);
  if (text.length <= LONG * 1.3) return box;
  const more = el("button", { type: "button", class: "more", on: { click: () => { box.textContent = text; } } }, `show all ${count(text.length)} characters`);
  box.append("\n", more);
  return box;
}
