// The filters beside the table. Each counts what the others leave, so that nothing is offered that gives no row.

const FACETS = { phase: "Phase", outcome: "Outcome", ended: "Ended", agent: "Agent" };
const SCALES = { step: "Step", reward: "Reward", turns: "Turns", sampled: "Tokens sampled" };
const BINS = 24;

function renderFilters() {
  const facets = Object.entries(FACETS).map(([name, title]) => facet(name, title));
  const scales = Object.entries(SCALES).map(([name, title]) => rangeOf(name, title));
  $("filters").replaceChildren(...[...facets.slice(0, 2), ...scales, ...facets.slice(2)].filter(Boolean));
}

function facet(name, title) {
  const counts = new Map();
  for (const row of head.rows) for (const value of valuesOf(row, name)) counts.set(value, 0);
  if (counts.size < 2 && !state.sets[name].size) return null;
  for (const row of passing(head.rows, name)) for (const value of valuesOf(row, name)) counts.set(value, counts.get(value) + 1);
  const most = Math.max(1, ...counts.values());
  const values = [...counts].sort((a, b) => b[1] - a[1]);
  return el("fieldset", { class: "facet" }, el("legend", {}, title), ...values.map(([value, number]) => {
    const bar = el("span", { class: "share" });
    bar.style.width = `${(100 * number) / most}%`;
    return el("label", { class: number ? "" : "none" },
      el("input", { type: "checkbox", checked: state.sets[name].has(value), on: { change: () => go(toggled(name, value)) } }),
      el("span", { class: "value" }, name === "outcome" ? sign(value) : null, value), el("span", { class: "number" }, count(number)), bar);
  }));
}

function sign(outcome) {
  return el("span", { class: `sign ${outcome.replace(" ", "-")}`, "aria-hidden": "true" }, `${OUTCOMES[outcome].sign} `);
}

function rangeOf(name, title) {
  const known = head.rows.map((row) => row[name]).filter((value) => value !== null);
  const [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (!(high > low)) return null;
  const field = (end, label) => el("input", {
    type: "number", step: "any", placeholder: figure(end ? high : low).replace("−", "-"), value: state.ranges[name][end] ?? "", "aria-label": `${label} ${title.toLowerCase()}`,
    on: { change: (event) => {
      const ends = [...state.ranges[name]];
      ends[end] = event.target.value === "" ? null : Number(event.target.value);
      go({ ranges: { ...state.ranges, [name]: ends } });
    } },
  });
  const values = passing(head.rows, name).map((row) => row[name]).filter((value) => value !== null);
  return el("fieldset", { class: "facet" }, el("legend", {}, title), histogram(name, values, low, high),
    el("div", { class: "ends" }, field(0, "least"), el("span", {}, "to"), field(1, "greatest")));
}

/** Bars of how many rows lie where; a click keeps those of one bar, and a second one lets the others back in. */
function histogram(name, values, low, high) {
  const whole = RANGES.filter((key) => key !== "reward").includes(name);
  const bins = whole ? Math.min(BINS, high - low + 1) : BINS;
  const width = (high - low + (whole ? 1 : 0)) / bins;
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / width))] += 1;
  const most = Math.max(1, ...counts);
  const [from, to] = state.ranges[name];
  const bars = counts.map((number, bin) => {
    const start = low + bin * width;
    const ends = whole ? [Math.ceil(start - 1e-9), Math.ceil(start + width - 1e-9) - 1] : [start, start + width];
    const inside = (to === null || start <= to) && (from === null || ends[1] >= from);
    const height = number ? Math.max(1.5, (26 * number) / most) : 0;
    const told = `${figure(ends[0])}${ends[1] > ends[0] ? ` to ${figure(ends[1])}` : ""}: ${plural(number, "episode")}`;
    return svg("g", { class: `bin${inside ? " inside" : ""}`, "data-from": ends[0], "data-to": ends[1] }, svg("title", {}, told),
      svg("rect", { class: "reach", x: (bin * 192) / bins, y: 0, width: 192 / bins, height: 28 }),
      svg("rect", { class: "fill", x: (bin * 192) / bins + 0.5, y: 28 - height, width: Math.max(1, 192 / bins - 1), height }));
  });
  return svg("svg", { class: "histogram", viewBox: "0 0 192 28", preserveAspectRatio: "none", "aria-hidden": "true", on: { click: (event) => {
    const bin = event.target.closest(".bin");
    if (!bin) return;
    const ends = [Number(bin.dataset.from), Number(bin.dataset.to)];
    const same = ends.every((end, i) => end === state.ranges[name][i]);
    go({ ranges: { ...state.ranges, [name]: same ? [null, null] : ends } });
  } } }, ...bars);
}

/** One chip for each filter that is set: what it says, and a button that takes it away. */
function renderChips() {
  const chips = [];
  const add = (text, changes) => chips.push(el("button", { class: "chip", type: "button", title: "Take this filter away", on: { click: () => go(changes) } }, text, el("span", { "aria-hidden": "true" }, " ×")));
  if (state.task) add(`task ${state.task}`, { task: "" });
  for (const name of SETS) for (const value of state.sets[name]) add(`${name}: ${value}`, toggled(name, value));
  for (const name of RANGES) {
    const [low, high] = state.ranges[name];
    if (low === null && high === null) continue;
    const words = low === high ? figure(low) : low === null ? `at most ${figure(high)}` : high === null ? `at least ${figure(low)}` : `${figure(low)} to ${figure(high)}`;
    add(`${SCALES[name].toLowerCase()} ${words}`, { ranges: { ...state.ranges, [name]: [null, null] } });
  }
  if (state.q) add(`“${state.q}”`, { q: "" });
  if (chips.length > 1) chips.push(el("button", { class: "chip clear", type: "button", on: { click: () => go(noFilters()) } }, "clear all"));
  $("chips").replaceChildren(...chips);
}

function noFilters() {
  const { q, task, sets, ranges } = emptyState();
  return { q, task, sets, ranges };
}
