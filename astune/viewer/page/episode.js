// One episode: what it was judged and why, its forest, its conversation, its tokens.

const shown = { row: null, episode: null, lane: 0 };

const agentNumber = (agent) => shown.row.agents.indexOf(agent) % 6;

async function renderEpisode() {
  const row = head.rows.find((one) => one.key === state.episode);
  if (row === undefined) {
    notice(`There is no episode ${state.episode} in this page.`);
    return go({ episode: null });
  }
  if (shown.row === row && !$("episode").hidden) return state.turn === null ? undefined : showTurn(state.turn, "both");
  shown.row = row;
  const episode = await readEpisode(row);
  if (state.episode !== row.key) return; // another one was chosen meanwhile
  Object.assign(shown, { episode, lane: 0 });
  $("episode").replaceChildren(episodeHead(row), ...[error(), task(row), verdict(row), training(row), happened()].filter(Boolean), ...forestAndColumns());
  show("episode");
  scrollTo(0, 0);
  renderChat();
  if (episode.lanes.length) {
    renderForest();
    renderTokens(0);
    renderLegend();
    if (state.turn === null) revealFirst();
  }
  if (state.turn !== null) showTurn(state.turn, "both");
  document.title = `${row.task} · ${head.title}`;
}

function revealFirst() {
  const span = stream.lane.spans[0];
  if (span) reveal(span.start);
}

function episodeHead(row) {
  const at = table.rows.indexOf(row);
  const step = (by, label, key) => el("button", { type: "button", disabled: table.rows[at + by] === undefined, title: `${label} (${key})`, "aria-label": label, on: { click: () => neighbour(by) } }, by < 0 ? "‹" : "›");
  const point = curvePoint(row);
  const where = [el("span", {}, row.phase), el("button", { type: "button", class: "link", title: "All episodes of this step", on: { click: () => go({ episode: null, turn: null, ...noFilters(), ranges: { ...emptyState().ranges, step: [row.step, row.step] } }) } }, `step ${row.step}`),
    el("span", {}, `line ${row.line} of episodes/${head.lines[row.phase]}`)];
  if (point) where.push(el("button", { type: "button", class: "link", title: "Show this point of the curve", on: { click: () => go({ episode: null, turn: null, metric: point.metric, ranges: { ...emptyState().ranges, step: [row.step, row.step] } }) } }, `${point.metric} ${figure(point.value)}, line ${point.line} of metrics.jsonl`));
  if (row.seconds !== null) where.push(el("span", {}, `${figure(row.seconds)} s`));
  return el("header", { class: "top" },
    el("div", { class: "line" },
      el("button", { type: "button", class: "back", title: "Back to the table (Esc)", on: { click: () => go({ episode: null, turn: null }) } }, "← episodes"),
      el("h1", {}, row.task), rewardBadge(row), el("span", { class: "grow" }),
      el("span", { class: "dim" }, at < 0 ? "" : `${count(at + 1)} of ${count(table.rows.length)}`), step(-1, "Previous episode", "p"), step(1, "Next episode", "n")),
    el("div", { class: "where" }, ...where), attempts(row));
}

function rewardBadge(row) {
  const text = row.reward === null ? row.outcome : `reward ${figure(row.reward)}`;
  return el("span", { class: `badge ${row.outcome.replace(" ", "-")}`, title: OUTCOMES[row.outcome].meaning }, sign(row.outcome), text);
}

/** The point of a curve that this episode is part of. */
function curvePoint(row) {
  const names = row.phase === "train" ? ["success/mean", "reward/mean"] : [`${row.phase}/success`, `${row.phase}/reward`];
  for (const metric of names) {
    const found = (head.curves[metric] ?? []).find((point) => point[0] === row.step);
    if (found) return { metric, value: found[1], line: found[2] };
  }
  return null;
}

/** The attempts at the same task in the same step, to switch between. */
function attempts(row) {
  const group = head.rows.filter((one) => one.group === row.group);
  if (group.length < 2) return null;
  return el("nav", { class: "attempts", "aria-label": "Attempts at this task in this step" }, el("span", { class: "dim" }, `${group.length} attempts`), ...group.map((one) =>
    el("button", { type: "button", class: `attempt ${one.outcome.replace(" ", "-")}`, "aria-current": one === row ? "true" : null, title: `reward ${one.reward === null ? "none" : figure(one.reward)}, ${plural(one.turns, "turn")}`, on: { click: () => go({ episode: one.key, turn: null }) } }, sign(one.outcome), one.reward === null ? "none" : figure(one.reward))));
}

function card(title, ...content) {
  return el("section", { class: "card" }, el("h2", {}, title), ...content);
}

function pairs(entries) {
  return el("dl", {}, ...entries.filter(Boolean).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function task(row) {
  const extra = Object.entries(shown.episode.metadata).filter(([, value]) => value !== row.query && value !== row.reference);
  const folds = extra.length ? el("details", {}, el("summary", {}, `the row of the data set, ${plural(extra.length, "field")}`), pairs(extra.map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]))) : null;
  return card("Task", longText(row.query || "(no question)"), pairs([row.reference && ["reference", row.reference], row.answer && ["answer", el("b", {}, row.answer)]]), folds);
}

function verdict(row) {
  const { episode } = shown;
  const { verdict: judged, given } = episode;
  const own = Object.entries(episode.agent_rewards).map(([agent, reward]) => [agent, signed(reward)]);
  const turns = Object.entries(episode.turn_rewards).map(([turn, reward]) => `turn ${Number(turn) + 1}: ${signed(reward)}`);
  const entries = judged === null ? [["verdict", "none: nobody judged it"]] : [
    ["reason", judged.reason || el("span", { class: "dim" }, "the judge gave none")],
    ["judge", judged.judged_by || "unnamed"],
    Object.keys(judged.metrics).length > 0 && ["judge's metrics", numbers(judged.metrics)],
  ];
  return card("Verdict", pairs([...entries,
    own.length > 0 && ["agents' own", own.map((pair) => pair.join(" ")).join(" · ")],
    turns.length > 0 && ["turn rewards", turns.join(" · ")],
    given && Object.keys(given.metrics).length > 0 && ["workflow's metrics", numbers(given.metrics)],
  ]));
}

const numbers = (values) => Object.entries(values).map(([name, value]) => `${plain(name)} ${isNumber(value) ? figure(value) : value}`).join(" · ");

/** What the step made of it, and what became of its tokens. */
function training(row) {
  const { outcome, left_out: why, receipt, metrics, tool_uses } = shown.episode;
  const [sampled, ...rest] = receipt.split(" · ");
  return card("Training", pairs([
    outcome !== null && ["advantage", el("span", {}, el("b", {}, signed(outcome)), ` (${head.estimator})`)],
    row.phase.startsWith("eval/") ? ["not trained", WHY["held-out"]] : why && ["not trained", `${plain(why)}. ${reasonText(why)}`],
    ["tokens", [sampled.replace(" tokens", ""), ...rest.slice(0, -1)].join(" · ")], ["rows", rest.at(-1)],
    ["ended", row.ended],
    ...Object.entries(tool_uses).map(([name, use]) => [`tool ${name}`, use]),
    Object.keys(metrics).length > 0 && ["metrics", numbers(metrics)],
  ]));
}

function error() {
  const { error: raised } = shown.episode;
  if (raised === null) return null;
  return el("section", { class: "card wrong", role: "note" }, el("h2", {}, `Error in the ${raised.stage}: ${raised.kind}`), el("p", { class: "text" }, raised.message),
    raised.traceback ? el("details", { open: true }, el("summary", {}, "traceback"), el("pre", { tabindex: 0 }, raised.traceback)) : null);
}

/** What the workflow tells of the episode, by heading; a line that not all knew of says who did. */
function happened() {
  const { events } = shown.episode;
  if (!events.length) return null;
  const lines = events.flatMap(({ text, who, heading, known_to: known }, i) => [
    heading && heading !== events[i - 1]?.heading ? el("h3", {}, heading) : null,
    el("p", { class: known ? "event secret" : "event" }, who ? el("b", {}, who) : null, el("span", {}, text),
      known ? el("span", { class: "mark" }, `known to ${[known].flat().join(", ")}`) : null),
  ]);
  return el("section", { id: "happened", class: "card" }, el("h2", {}, "What happened"), el("div", {}, ...lines.filter((line) => line !== null)));
}

function forestAndColumns() {
  const { lanes } = shown.episode;
  const chat = el("section", { id: "chatcard", "aria-label": "Conversation" }, el("h2", {}, "Conversation"), el("div", { id: "chat" }));
  if (!lanes.length) return [el("div", { class: "columns" }, chat)];
  const forks = lanes.filter((lane) => lane.fork !== null).length;
  const told = lanes.length === 1 ? "one training row: every call went on from the one before" : `${lanes.length} training rows, ${plural(forks, "fork")}`;
  const forest = card("Timelines", el("p", { class: "dim hint" }, `${told}. Blocks are turns, lines are context; wider means more tokens, hollow means not trained.`), el("div", { id: "forest", tabindex: -1 }));
  const choice = el("select", { id: "lane", "aria-label": "Training row", on: { change: (event) => showLane(Number(event.target.value)) } },
    ...lanes.map((lane, i) => el("option", { value: i }, `row ${i + 1} · ${lane.agent} · ${plural(lane.length, "token")}`)));
  const modes = el("div", { class: "modes", role: "group", "aria-label": "Colour of the tokens" }, ...Object.entries(MODES).map(([mode, title], i) =>
    el("button", { type: "button", "data-set-mode": mode, "aria-pressed": String(mode === modeOf()), title: `Colour by ${title} (${i + 1})`, on: { click: () => setMode(mode) } }, title)));
  const tokens = el("section", { id: "tokens", "aria-label": "Tokens" }, el("h2", {}, "Tokens"), choice, modes, el("div", { id: "legend" }), el("div", { id: "stream" }), el("div", { id: "inspector", "aria-live": "polite" }));
  return [forest, el("div", { class: "columns" }, chat, tokens)];
}

function showLane(number) {
  if (shown.lane !== number) renderTokens(number);
  shown.lane = number;
  $("lane").value = number;
}

/** Marks a turn everywhere and brings it into view in the conversation, the tokens, or both. */
function showTurn(turn, where) {
  const home = shown.episode.homes.get(turn);
  if (home === undefined) return;
  note({ turn });
  markForest(turn);
  markChat(turn);
  if (where !== "chat") {
    showLane(home.lane);
    reveal(home.span.start);
  }
  if (where !== "tokens") {
    const box = $(`turn-${turn}`);
    const offset = box.getBoundingClientRect().top - $("bar").offsetHeight - 12;
    if (where === "chat" || offset < 0 || offset > innerHeight * 0.6) scrollBy({ top: offset, behavior: "instant" });
  }
}

/** The next (1) or previous (-1) episode in the order of the table. */
function neighbour(by) {
  const row = table.rows[table.rows.indexOf(shown.row) + by];
  if (row === undefined) return;
  table.selected = Math.max(0, table.items.indexOf(row));
  go({ episode: row.key, turn: null });
}
