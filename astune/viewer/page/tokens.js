// The tokens of one training row. Chunks near the view are filled, the others are empty boxes of about their height, so
// that a row of any length opens and scrolls alike. Colours are classes: switching them touches one attribute.

const CHUNK = [256, 640]; // a chunk ends after a line break past the first number of tokens, at the second at the latest
const LINE = 24; // pixels of a line of tokens
const MODES = {
  mask: "what is trained", advantage: "advantage", logprob: "probability", version: "policy version",
};
const stream = { box: null, lane: null, chunks: [], observer: null, pinned: null };

const modeOf = () => (state.colour in MODES ? state.colour : "mask");

/** Shows lane `number` of the open episode. */
function renderTokens(number) {
  const lane = shown.episode.lanes[number];
  stream.observer?.disconnect();
  Object.assign(stream, { lane, number, pinned: null, runs: runsOf(lane) });
  const greatest = Math.max(...lane.spans.map((span) => Math.abs(span.advantage ?? 0)), 1e-9);
  const versions = [...new Set(shown.episode.turns.map((turn) => turn.version))].sort((a, b) => a - b);
  for (const run of stream.runs) run.classes = classesOf(run.span, greatest, versions);
  stream.box = el("div", { class: `stream${shown.episode.texts === null ? " ids" : ""}`, "data-mode": modeOf(), tabindex: 0, role: "region", "aria-label": "Tokens; click one to pin it, arrow keys move on" });
  $("stream").replaceChildren(stream.box);
  stream.chunks = chunksOf(lane);
  stream.box.append(...stream.chunks.map((chunk) => chunk.box));
  stream.observer = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? fillChunk(entry.target.chunk) : emptyChunk(entry.target.chunk, entry.boundingClientRect.height);
  }, { root: stream.box, rootMargin: "900px 0px" });
  for (const chunk of stream.chunks) stream.observer.observe(chunk.box);
  stream.box.addEventListener("pointermove", (event) => tellToken(event.target.closest(".t"), { x: event.clientX, y: event.clientY }));
  stream.box.addEventListener("pointerleave", () => tip(null));
  stream.box.addEventListener("click", clickToken);
  stream.box.addEventListener("keydown", moveToken);
  renderInspector();
}

/** The lane cut where what wrote it changes: context (no span) and spans in turn. */
function runsOf(lane) {
  const runs = [];
  let at = 0;
  for (const span of lane.spans) {
    if (span.start > at) runs.push({ start: at, stop: span.start, span: null });
    runs.push({ start: span.start, stop: span.stop, span });
    at = span.stop;
  }
  if (at < lane.length) runs.push({ start: at, stop: lane.length, span: null });
  return runs;
}

function classesOf(span, greatest, versions) {
  if (span === null) return "run context";
  const why = whyNotTrained(span);
  const { advantage } = span;
  const size = advantage ? 1 + Math.min(2, Math.floor((3 * Math.abs(advantage)) / greatest - 1e-9)) : 0;
  const mask = span.shared ? "shared" : why ? "untrained" : "trained";
  const way = advantage === null ? "none" : advantage > 0 ? "plus" : advantage < 0 ? "minus" : "none";
  return `run sampled ${mask} ${way} a${size} v${versions.indexOf(shown.episode.turns[span.turn].version) % 6}`;
}

/** Why the tokens of a span carry no loss; null if they do. */
function whyNotTrained(span) {
  const { excluded } = shown.episode.turns[span.turn];
  if (excluded !== null) return excluded;
  if (shown.row.phase.startsWith("eval/")) return "held-out";
  if (shown.episode.left_out !== null) return shown.episode.left_out;
  return span.weight ? null : span.shared ? "shared" : "no weight";
}

const WHY = { "held-out": "Held-out tasks are never trained on.", shared: "Trained in the row that has this turn first.", "no weight": "Its weight is 0." };
const reasonText = (why) => head.reasons[why] ?? WHY[why] ?? "";

function textAt(lane, i) {
  const { texts } = shown.episode;
  return texts === null ? String(lane.ids[i]) : lane.odd.get(i) ?? texts[lane.ids[i]];
}

function chunksOf(lane) {
  const columns = Math.max(20, Math.floor(($("stream").clientWidth - 40) / 7.7));
  const chunks = [];
  let [start, lines, column] = [0, 1, 0];
  for (let i = 0; i < lane.length; i++) {
    const text = textAt(lane, i);
    const breaks = text.split("\n").length - 1;
    column += text.length + (shown.episode.texts === null ? 1 : 0);
    lines += breaks + (breaks ? 0 : Math.floor(column / columns));
    column = breaks ? text.length - 1 - text.lastIndexOf("\n") : column % columns;
    const size = i + 1 - start;
    if (i + 1 < lane.length && size < CHUNK[1] && !(size >= CHUNK[0] && text.includes("\n"))) continue;
    const box = el("div", { class: "chunk" });
    box.style.height = `${lines * LINE}px`;
    box.chunk = { start, stop: i + 1, box, filled: false };
    chunks.push(box.chunk);
    [start, lines, column] = [i + 1, 1, 0];
  }
  return chunks;
}

function fillChunk(chunk) {
  if (chunk.filled) return;
  chunk.filled = true;
  const parts = document.createDocumentFragment();
  for (const run of stream.runs) {
    if (run.stop <= chunk.start || run.start >= chunk.stop) continue;
    const [start, stop] = [Math.max(run.start, chunk.start), Math.min(run.stop, chunk.stop)];
    const box = el("span", { class: run.classes });
    if (run.span && start === run.start) box.append(tagOf(run.span));
    for (let i = start; i < stop; i++) box.append(tokenAt(i, run.span));
    parts.append(box);
  }
  chunk.box.style.height = "";
  chunk.box.replaceChildren(parts);
}

function emptyChunk(chunk, height) {
  if (!chunk.filled || height === 0) return;
  chunk.filled = false;
  chunk.box.style.height = `${height}px`;
  chunk.box.replaceChildren();
}

/** The mark before the first token of a turn: its number, and what the colours of the mode stand for. */
function tagOf(span) {
  const turn = shown.episode.turns[span.turn];
  const why = whyNotTrained(span);
  return el("span", {
    class: "tag", "data-turn": span.turn, role: "button", tabindex: 0, "aria-label": `turn ${span.turn + 1}`,
    "data-mask": `${span.turn + 1}${why ? ` ${plain(why)}` : ""}`,
    "data-advantage": `${span.turn + 1} ${span.advantage === null ? "no advantage" : signed(span.advantage)}`,
    "data-logprob": `${span.turn + 1}`, "data-version": `${span.turn + 1} v${turn.version}`,
  });
}

function tokenAt(i, span) {
  const token = document.createElement("span");
  token.className = span === null ? "t" : `t p${bucket(span.logprobs[i - span.start])}`;
  token.i = i;
  const text = textAt(stream.lane, i);
  if (!text.includes("\n")) token.textContent = text;
  else for (const part of text.split(/(\n)/)) token.append(part === "\n" ? el("span", { class: "break" }, "⏎") : "", part);
  if (i === stream.pinned) token.classList.add("pinned");
  return token;
}

/** 0 for certain, 5 for a token that had less than one chance in a hundred. */
function bucket(logprob) {
  const limits = [0.9, 0.6, 0.3, 0.1, 0.01];
  const probability = Math.exp(logprob ?? 0);
  const found = limits.findIndex((limit) => probability >= limit);
  return found < 0 ? limits.length : found;
}

function describe(i) {
  const { lane } = stream;
  const span = lane.spans.find((one) => one.start <= i && i < one.stop) ?? null;
  const lines = [["token", shown.episode.texts === null ? "text unknown: the tokenizer is gone" : JSON.stringify(textAt(lane, i))], ["id", `${lane.ids[i]}, place ${count(i)} of ${count(lane.length)}`]];
  if (span === null) return [...lines, ["context", "read by the model, not sampled"]];
  const logprob = span.logprobs[i - span.start];
  const turn = shown.episode.turns[span.turn];
  const why = whyNotTrained(span);
  lines.push(["logprob", logprob === null ? "none" : `${logprob.toFixed(4)}, probability ${percent(Math.exp(logprob))}`]);
  lines.push(["turn", `${span.turn + 1}, ${turn.agent}, policy version ${turn.version}`]);
  if (span.advantage !== null) lines.push(["advantage", signed(span.advantage)]);
  lines.push(why === null ? ["weight", `${figure(span.weight)} in the loss of its step`] : ["not trained", `${plain(why)}. ${reasonText(why)}`]);
  return lines;
}

function tellToken(token, place) {
  if (token === null) return tip(null);
  tip(describe(token.i).map(([name, value]) => el("div", { class: "fact" }, el("span", {}, name), el("span", {}, value))), place);
}

function clickToken(event) {
  const tag = event.target.closest(".tag");
  if (tag) return showTurn(Number(tag.dataset.turn), "chat");
  const token = event.target.closest(".t");
  if (token) pin(stream.pinned === token.i ? null : token.i);
}

function moveToken(event) {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const tag = event.target.closest(".tag");
  if (tag && event.key === "Enter") showTurn(Number(tag.dataset.turn), "chat");
  else if (move && stream.pinned !== null) pin(Math.max(0, Math.min(stream.lane.length - 1, stream.pinned + move)), true);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function pin(i, follow = false) {
  stream.box.querySelector(".t.pinned")?.classList.remove("pinned");
  stream.pinned = i;
  if (i !== null) elementOf(i)?.classList.add("pinned");
  if (i !== null && follow) reveal(i, "nearest");
  renderInspector();
}

function renderInspector() {
  const facts = stream.pinned === null ? [] : describe(stream.pinned);
  $("inspector").replaceChildren(...(facts.length ? facts.map(([name, value]) => el("span", { class: "fact" }, el("b", {}, name), ` ${value}`)) : [el("span", { class: "dim" }, "Point at a token, or click it and move with ← →.")]));
}

function elementOf(i) {
  const chunk = stream.chunks.find((one) => one.start <= i && i < one.stop);
  if (!chunk) return null;
  fillChunk(chunk);
  return [...chunk.box.querySelectorAll(".t")].find((token) => token.i === i);
}

/** Scrolls the stream, and nothing else, to a token. Boxes above it may turn out higher than thought: so twice,
 * unless somebody scrolled in between. */
function reveal(i, where = "start") {
  const scroll = () => {
    const token = elementOf(i);
    if (!token) return;
    const offset = token.getBoundingClientRect().top - stream.box.getBoundingClientRect().top;
    if (where === "nearest" && offset > 20 && offset < stream.box.clientHeight - 40) return;
    stream.box.scrollTop += offset - 56;
  };
  scroll();
  const reached = stream.box.scrollTop;
  requestAnimationFrame(() => stream.box.scrollTop === reached && scroll());
}

function setMode(mode) {
  note({ colour: mode === "mask" ? "" : mode });
  if (stream.box) stream.box.dataset.mode = mode;
  for (const button of document.querySelectorAll("[data-set-mode]")) button.setAttribute("aria-pressed", String(button.dataset.setMode === mode));
  renderLegend();
}

const LEGENDS = {
  mask: [["trained", "trained"], ["untrained", "sampled, not trained"], ["shared", "in an earlier row"], ["context", "context"]],
  advantage: [["plus a3", "better than its group"], ["minus a3", "worse"], ["none", "no advantage"], ["context", "context"]],
  logprob: [["p0", "> 90 %"], ["p1", "> 60 %"], ["p2", "> 30 %"], ["p3", "> 10 %"], ["p4", "> 1 %"], ["p5", "less"]],
};

function renderLegend() {
  const mode = modeOf();
  const versions = () => [...new Set(shown.episode.turns.map((turn) => turn.version))].sort((a, b) => a - b).slice(0, 6).map((version, i) => [`v${i}`, `version ${version}`]);
  const entries = (LEGENDS[mode] ?? versions()).map(([classes, text]) => {
    const inside = classes.startsWith("p") && classes.length === 2 ? el("span", { class: `t ${classes}` }, text) : el("span", { class: "t" }, text);
    return el("span", { class: `run ${classes === "context" ? "" : "sampled "}${classes}` }, inside);
  });
  $("legend").dataset.mode = mode;
  $("legend").replaceChildren(...entries);
}
