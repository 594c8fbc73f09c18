// The timelines of an episode as a forest: a lane for each training row, which leaves its parent where their tokens part.

const LANE = 40;
const GUTTER = 168;
const FIRST = 24; // y of the first lane

const widthOf = (tokens, sampled) => (tokens ? (sampled ? 15 + 2.1 * Math.sqrt(tokens) : 10 + 1.5 * Math.sqrt(tokens)) : 0);

/** Places every lane: its `y`, and its own pieces from where it leaves its parent, as {start, stop, span, x, width}. */
function placeLanes(lanes, room) {
  const order = [];
  const children = lanes.map(() => []);
  lanes.forEach((lane, i) => lane.from && children[lane.from[0]].push(i));
  for (const own of children) own.sort((a, b) => lanes[b].from[1] - lanes[a].from[1]); // the last to leave is the nearest: no bends cross
  const visit = (i) => { order.push(i); children[i].forEach(visit); };
  lanes.forEach((lane, i) => lane.from || visit(i));
  const places = lanes.map((lane, i) => ({ i, lane, y: FIRST + order.indexOf(i) * LANE, pieces: [], from: lane.from }));
  for (const place of places) {
    const kept = place.from ? place.from[1] : 0;
    let x = place.from ? xOf(places, place.from[0], kept) + 16 : 0;
    for (const run of runsOf(place.lane)) {
      const start = Math.max(run.start, kept);
      if (start >= run.stop) continue;
      const width = widthOf(run.stop - start, run.span !== null);
      place.pieces.push({ ...run, start, x, width });
      x += width;
    }
    place.end = x;
  }
  const scale = Math.min(3.2, Math.max(0.42, room / Math.max(1, ...places.map((place) => place.end))));
  for (const place of places) for (const piece of place.pieces) [piece.x, piece.width] = [GUTTER + piece.x * scale, piece.width * scale];
  return places;
}

/** Where token `at` of a lane stands; what the lane shares with its parent stands there. */
function xOf(places, number, at) {
  const place = places[number];
  if (place.from && at <= place.from[1]) return xOf(places, place.from[0], at);
  const piece = place.pieces.find((one) => at <= one.stop);
  return piece.x + (piece.width * (at - piece.start)) / (piece.stop - piece.start);
}

/** The y of the lane that really holds token `at`. */
function yOf(places, number, at) {
  const place = places[number];
  return place.from && at <= place.from[1] ? yOf(places, place.from[0], at) : place.y;
}

function renderForest() {
  const { lanes } = shown.episode;
  const room = Math.max(320, $("forest").clientWidth - GUTTER - 40);
  const places = placeLanes(lanes, room);
  const right = Math.max(...places.flatMap((place) => place.pieces.map((piece) => piece.x + piece.width)), GUTTER);
  const height = FIRST + lanes.length * LANE - 6;
  const labelled = right + 60;
  const picture = svg("svg", { width: labelled, height, viewBox: `0 0 ${labelled} ${height}`, class: "forest", role: "group", "aria-label": `${plural(lanes.length, "training row")} as a forest` });
  for (const place of places) if (place.from && place.pieces.length) picture.append(branch(places, place));
  for (const place of places) picture.append(laneOf(place));
  $("forest").replaceChildren(picture);
  picture.addEventListener("click", (event) => chooseNode(event.target.closest("[data-turn], [data-lane]")));
  picture.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.closest("[data-turn], [data-lane]")) { chooseNode(event.target.closest("[data-turn], [data-lane]")); event.stopPropagation(); } });
  picture.addEventListener("pointermove", (event) => tellNode(event.target.closest("[data-told]"), event));
  picture.addEventListener("pointerleave", () => tip(null));
}

function tellNode(node, event) {
  tip(node ? node.dataset.told.split("\n") : null, { x: event.clientX, y: event.clientY });
}

function chooseNode(node) {
  if (!node) return;
  if (node.dataset.turn) showTurn(Number(node.dataset.turn), "both");
  else showLane(Number(node.dataset.lane));
}

/** The bend from the parent to a lane, and why it left. */
function branch(places, place) {
  const [parent, at] = place.from;
  const x = Math.max(GUTTER, xOf(places, parent, at));
  const y = yOf(places, parent, at);
  const first = place.pieces[0].x;
  const bend = svg("path", { class: "bend", d: `M${x},${y} C${x + 12},${y} ${first - 14},${place.y} ${first},${place.y}` });
  const why = place.lane.fork;
  const label = why === null ? null : svg("text", { class: "cause", x: first + 2, y: place.y - 13 }, plain(why));
  const told = [why === null ? `begins like row ${parent + 1}` : plain(why), why === null ? "" : head.forks[why] ?? "", `${plural(at, "token")} shared with row ${parent + 1}`].filter(Boolean).join("\n");
  return svg("g", { "data-told": told }, bend, label);
}

function laneOf(place) {
  const { lane, i } = place;
  const colour = `agent${agentNumber(lane.agent)}`;
  const trained = lane.spans.filter((span) => !span.shared).length;
  const label = svg("g", { class: "label", "data-lane": i, tabindex: 0, role: "button", "aria-label": `row ${i + 1}, ${lane.agent}, ${plural(lane.length, "token")}`, "data-told": `row ${i + 1} of ${lane.agent}\n${plural(lane.length, "token")}, ${plural(trained, "turn")} of its own\nclick: show its tokens` },
    svg("rect", { class: "reach", x: 0, y: place.y - 17, width: GUTTER - 10, height: 34, rx: 6 }),
    svg("circle", { class: `agent ${colour}`, cx: 12, cy: place.y, r: 4 }),
    svg("text", { class: "name", x: 23, y: place.y - 1 }, clipped(lane.agent, 19)),
    svg("text", { class: "size", x: 23, y: place.y + 12 }, `row ${i + 1} · ${plural(lane.length, "token")}`));
  return svg("g", {}, label, ...place.pieces.map((piece) => (piece.span === null ? contextOf(piece, place.y) : turnOf(piece, place.y, colour))));
}

function contextOf(piece, y) {
  return svg("g", { "data-told": `${plural(piece.stop - piece.start, "token")} of context\nread, not sampled` },
    svg("rect", { class: "reach", x: piece.x, y: y - 9, width: piece.width, height: 18 }),
    svg("line", { class: "context", x1: piece.x, x2: piece.x + piece.width, y1: y, y2: y }));
}

function turnOf(piece, y, colour) {
  const { span } = piece;
  const turn = shown.episode.turns[span.turn];
  const why = whyNotTrained(span);
  const told = [`turn ${span.turn + 1}, ${turn.agent}`, `${plural(span.stop - span.start, "token")} sampled, policy version ${turn.version}`,
    why === null ? `advantage ${span.advantage === null ? "none" : signed(span.advantage)}` : `not trained: ${plain(why)}`].join("\n");
  const wide = piece.width >= 7 * String(span.turn + 1).length + 4;
  return svg("g", { class: `turn ${colour}${why === null || why === "held-out" ? "" : " untrained"}`, "data-turn": span.turn, "data-told": told, tabindex: 0, role: "button", "aria-label": told.replaceAll("\n", ", ") },
    svg("rect", { x: piece.x + 1, y: y - 9, width: Math.max(3, piece.width - 2), height: 18, rx: 5 }),
    wide ? svg("text", { x: piece.x + piece.width / 2, y: y + 4, "text-anchor": "middle" }, span.turn + 1) : null);
}

function markForest(turn) {
  for (const node of $("forest").querySelectorAll(".turn")) node.classList.toggle("chosen", Number(node.dataset.turn) === turn);
}
