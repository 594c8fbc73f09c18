// The conversation: every message once, under the turn that read or wrote it.

const LONG = 1400; // characters of a message that are shown at first

function renderChat() {
  const { bubbles, turns } = shown.episode;
  const sections = [];
  let current = null;
  for (const bubble of bubbles) {
    if (current === null || current.turn !== bubble.turn) {
      current = { turn: bubble.turn, box: el("section", { class: `turnbox agent${agentNumber(turns[bubble.turn].agent)}`, id: `turn-${bubble.turn}`, "aria-label": `turn ${bubble.turn + 1}` }, turnHead(bubble)) };
      sections.push(current.box);
    }
    current.box.append(...message(bubble));
  }
  $("chat").replaceChildren(...(sections.length ? sections : [el("p", { class: "empty" }, "The model was never called.")]));
}

function turnHead({ turn: number }) {
  const turn = shown.episode.turns[number];
  const marks = shown.episode.bubbles.filter((bubble) => bubble.turn === number).flatMap((bubble) => bubble.marks ?? []);
  const facts = [`${count(turn.prompt)} + ${plural(turn.sampled, "token")}`, `v${turn.version}`];
  if (turn.temperature !== 1) facts.push(`temperature ${figure(turn.temperature)}`);
  if (turn.finish === "length") facts.push("cut off by the token limit");
  return el("header", {},
    el("button", { type: "button", class: "number", title: "Show its tokens", on: { click: () => showTurn(number, "tokens") } }, `turn ${number + 1}`),
    el("span", { class: "who" }, el("i", { class: "dot", "aria-hidden": "true" }), turn.agent),
    el("span", { class: "dim" }, facts.join(" · ")), offered(number),
    ...marks.map((one) => el("span", { class: `mark ${one.kind}`, title: one.meaning, tabindex: 0 }, one.text)));
}

/** The tools that were offered, where they are not those of the agent's turn before. */
function offered(number) {
  const { turns, tools } = shown.episode;
  const before = turns.slice(0, number).findLast((turn) => turn.agent === turns[number].agent);
  const list = tools[turns[number].tools];
  if ((before && before.tools === turns[number].tools) || (!before && !list.length)) return null;
  const names = list.map((tool) => tool.function?.name ?? tool.name ?? "?");
  return el("details", { class: "offered" }, el("summary", {}, names.length ? `tools: ${clipped(names.join(", "), 60)}` : "no tools any more"), el("pre", {}, JSON.stringify(list, null, 2)));
}

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

function markChat(turn) {
  for (const box of $("chat").querySelectorAll(".turnbox")) box.classList.toggle("chosen", box.id === `turn-${turn}`);
}
