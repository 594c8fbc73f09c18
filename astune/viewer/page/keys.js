// The keyboard, and the help that tells it.

const KEYS = [
  ["j k, ↓ ↑", "next and previous row of the table"],
  ["Enter", "open the row"],
  ["Esc", "back to the table; in the search: leave it"],
  ["n p", "next and previous episode, in the order of the table"],
  ["[ ]", "previous and next turn of the episode"],
  ["1 2 3 4", "colour tokens by what is trained, advantage, probability, policy version"],
  ["← →", "in the tokens: the pinned token; in the large chart: the step"],
  ["g", "group attempts at the same task"],
  ["/", "search"],
  ["t", "light or dark"],
  ["?", "this help"],
];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (typing && event.key !== "Escape") return;
  if (typing) return event.target.blur();
  const action = (state.episode ? EPISODE_KEYS : TABLE_KEYS)[event.key] ?? COMMON_KEYS[event.key];
  if (!action || (event.key === "Enter" && event.target.matches("button, summary, a, [role=button]"))) return;
  event.preventDefault();
  action();
}

const page = () => Math.floor(table.view.clientHeight / ROW) - 2;
const TABLE_KEYS = {
  j: () => select(table.selected + 1), ArrowDown: () => select(table.selected + 1),
  k: () => select(table.selected - 1), ArrowUp: () => select(table.selected - 1),
  PageDown: () => select(table.selected + page()), PageUp: () => select(table.selected - page()),
  Home: () => select(0), End: () => select(table.items.length - 1),
  Enter: () => table.items.length && act(table.selected, {}),
  g: () => go({ grouped: !state.grouped }),
};
const EPISODE_KEYS = {
  Escape: () => go({ episode: null, turn: null }),
  n: () => neighbour(1), p: () => neighbour(-1),
  "[": () => nextTurn(-1), "]": () => nextTurn(1),
  ...Object.fromEntries(Object.keys(MODES).map((mode, i) => [String(i + 1), () => shown.episode?.lanes.length && setMode(mode)])),
};
const COMMON_KEYS = {
  "/": () => { if (state.episode) go({ episode: null, turn: null }); $("search").focus(); $("search").select(); },
  t: () => switchTheme(), "?": () => $("help").showModal(),
};

function nextTurn(by) {
  const last = shown.episode.turns.length - 1;
  if (last >= 0) showTurn(Math.max(0, Math.min(last, (state.turn ?? (by > 0 ? -1 : 0)) + by)), "both");
}

function buildHelp() {
  const close = el("button", { type: "button", on: { click: () => $("help").close() } }, "Close");
  $("help").append(el("h2", {}, "Keyboard"), el("dl", {}, ...KEYS.flatMap(([keys, meaning]) => [el("dt", {}, ...keys.split(" ").map((key) => el("kbd", {}, key.replace(",", "")))), el("dd", {}, meaning)])),
    el("p", { class: "dim" }, "The address keeps what is shown: copy it to send a filter, an episode or a turn."), close);
  $("keys").addEventListener("click", () => $("help").showModal());
}
