// The candidates of a search for prompts: a tree with what each changed, which filters the table to its episodes.

const FATES = {
  first: "The text that everything begins with.",
  kept: "It played all tasks of the search.",
  tried: "It was no better than its parent on a few tasks, and went no further.",
  dropped: "It was never played.",
  unplayed: "The search ended before its turn.",
};

function renderCandidates() {
  $("candidates").hidden = head.candidates.length === 0;
  const means = head.candidates.map((one) => one.mean).filter(isNumber);
  const best = Math.max(...means);
  $("candidates").replaceChildren(el("h2", {}, plural(head.candidates.length, "candidate")),
    el("ul", { class: "tree" }, ...head.candidates.map((one) => candidateItem(one, one.mean === best))));
}

function candidateItem(one, best) {
  const played = head.rows.filter((row) => one.phases.includes(row.phase)).length;
  const chosen = one.phases.some((phase) => state.sets.phase.has(phase));
  const phases = new Set(chosen ? [] : one.phases);
  const score = one.mean === null ? "not played" : `reward ${figure(one.mean)} at ${plural(one.tasks, "task")}`;
  return el("li", { class: `candidate ${one.fate}`, "data-depth": Math.min(one.depth, 8) },
    el("b", {}, one.candidate), el("span", { class: best ? "best" : "dim" }, score, isNumber(one.success) ? `, success ${percent(one.success)}` : null),
    el("span", { class: "fate", title: FATES[one.fate] ?? "" }, one.fate),
    one.parents.length > 1 ? el("span", { class: "dim" }, `of ${one.parents.join(" and ")}`) : null,
    played ? el("button", { type: "button", class: "link", "aria-pressed": String(chosen), on: { click: () => go({ sets: { ...state.sets, phase: phases } }) } }, plural(played, "episode")) : null,
    one.why ? el("span", { class: "bad" }, one.why) : null,
    ...one.changes.map(([name, parts]) => el("p", { class: "text" }, el("code", {}, name), " ", ...parts.map(([kind, text]) => changed(kind, text)))));
}

const changed = (kind, text) => el({ "=": "span", "-": "del", "+": "ins" }[kind], {}, text);
