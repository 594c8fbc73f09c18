// What is shown, kept in the address (#...), so that a link shows the same: filters, order, episode, turn.

const RANGES = ["step", "reward", "turns", "sampled"];
const SETS = ["phase", "outcome", "ended", "agent"];

function emptyState() {
  return {
    q: "", task: "", sort: "", grouped: false, metric: "", episode: null, turn: null, colour: "",
    sets: Object.fromEntries(SETS.map((name) => [name, new Set()])),
    ranges: Object.fromEntries(RANGES.map((name) => [name, [null, null]])),
  };
}

let state = emptyState();

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const next = emptyState();
  for (const name of ["q", "task", "sort", "metric", "colour"]) next[name] = given.get(name) ?? "";
  next.grouped = given.has("grouped");
  next.episode = given.get("episode");
  next.turn = given.has("turn") ? Number(given.get("turn")) - 1 : null;
  for (const name of SETS) next.sets[name] = new Set(given.getAll(name));
  for (const name of RANGES) {
    const ends = (given.get(name) ?? "").split("..");
    next.ranges[name] = [0, ends.length - 1].map((end) => (ends[end] ? Number(ends[end]) : null));
  }
  return next;
}

function address(of = state) {
  const given = new URLSearchParams();
  for (const name of ["q", "task", "sort", "metric", "colour"]) if (of[name]) given.set(name, of[name]);
  if (of.grouped) given.set("grouped", "1");
  for (const name of SETS) for (const value of of.sets[name]) given.append(name, value);
  for (const name of RANGES) {
    const [low, high] = of.ranges[name];
    if (low !== null || high !== null) given.set(name, low === high ? low : `${low ?? ""}..${high ?? ""}`);
  }
  if (of.episode) given.set("episode", of.episode);
  if (of.episode && of.turn !== null) given.set("turn", of.turn + 1);
  return `#${given}`;
}

/** Takes the changes over and shows them. Opening and leaving an episode makes an entry in the browser's history. */
function go(changes) {
  const moved = "episode" in changes && changes.episode !== state.episode;
  state = { ...state, ...changes };
  if (moved) history.pushState(null, "", address());
  else history.replaceState(null, "", address());
  render();
}

/** Remembers what is shown already. */
function note(changes) {
  Object.assign(state, changes);
  history.replaceState(null, "", address());
}

function toggled(name, value) {
  const set = new Set(state.sets[name]);
  if (!set.delete(value)) set.add(value);
  return { sets: { ...state.sets, [name]: set } };
}

const inRange = ([low, high], value) =>
  (low === null && high === null) || (value !== null && (low === null || value >= low) && (high === null || value <= high));

/** Rows that pass all filters but the one called `except`. */
function passing(rows, except = null) {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const sets = SETS.filter((name) => name !== except && state.sets[name].size);
  const ranges = RANGES.filter((name) => name !== except && state.ranges[name].some((end) => end !== null));
  return rows.filter((row) =>
    (!state.task || row.task === state.task) &&
    sets.every((name) => valuesOf(row, name).some((value) => state.sets[name].has(value))) &&
    ranges.every((name) => inRange(state.ranges[name], row[name])) &&
    words.every((word) => row.text.includes(word)));
}

const valuesOf = (row, name) => (name === "agent" ? row.agents : [row[name]]);

function sorted(rows) {
  if (!state.sort) return rows;
  const down = state.sort.startsWith("-") ? -1 : 1;
  const value = COLUMNS[state.sort.replace("-", "")].value;
  const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : down * (a < b ? -1 : 1)); // none is last
  return rows.map((row) => [value(row), row]).sort((a, b) => compare(a[0], b[0])).map((pair) => pair[1]);
}
