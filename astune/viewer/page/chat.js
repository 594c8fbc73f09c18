// The conversation: every message once, under the turn that read or wrote it.

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
  const facts = [`${count(turn.prompt)} + ${plural(turn.sampled, "token")}`, `${turn.model ? `${turn.model} ` : ""}v${turn.version}`];
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

function markChat(turn) {
  for (const box of $("chat").querySelectorAll(".turnbox")) box.classList.toggle("chosen", box.id === `turn-${turn}`);
}
