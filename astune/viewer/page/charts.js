// Curves by step: one large, all others small. A point filters the table to its step; a small one becomes the large one.

const SIZES = { large: [560, 184, 40, 10, 24, 14], small: [148, 58, 2, 2, 6, 6] }; // width, height, left, right, bottom, top

const MEANS = /^(?:(.+)\/mean|((?:judge|workflow|agent_reward)\/.+))$/; // the metrics of a step that are means over episodes
const HELD_OUT = /^eval\/((?:[^/]+\/)?(sampled|greedy))\/(.+)$/; // evaluation, decoding, figure

/** The curves of the large chart: what is held out belongs to what is trained on. */
function curvesOf(metric) {
  const mean = MEANS.exec(metric);
  const own = HELD_OUT.exec(metric);
  const label = own ? { name: `held-out, ${own[1]}`, kind: own[2] } : { name: "training", kind: "train" };
  const found = [{ ...label, points: head.curves[metric] ?? [] }];
  for (const [key, points] of mean ? Object.entries(head.curves) : []) {
    const part = HELD_OUT.exec(key);
    if (part && part[3] === (mean[1] ?? mean[2])) found.push({ name: `held-out, ${part[1]}`, kind: part[2], points });
  }
  return found.filter((curve) => curve.points.length);
}

/** A metric of the workflow by the name that the workflow gave it. */
const nameOf = (key) => head.names[key] ?? key;

const mainMetric = () =>
  [state.metric, "success/mean", "reward/mean", ...Object.keys(head.curves)].find((key) => key && curvesOf(key).length);

function renderCharts() {
  const metric = mainMetric();
  $("charts").hidden = metric === undefined;
  if (metric === undefined) return;
  const all = Object.keys(head.curves).sort();
  const small = ["success/mean", ...head.charts].filter((key) => (head.curves[key] ?? []).length > 1);
  const choice = el("select", { "aria-label": "Metric of the large chart", on: { change: (event) => go({ metric: event.target.value }) } },
    ...all.map((key) => el("option", { value: key, selected: key === metric }, nameOf(key))));
  const large = el("figure", { class: "large" }, el("figcaption", {}, choice, legend(curvesOf(metric))), drawing(metric, "large"));
  const tiles = small.map((key) => el("button", {
    class: `tile${key === metric ? " chosen" : ""}`, type: "button", title: `Show ${key} large. ${head.words[key] ?? ""}`, on: { click: () => go({ metric: key }) },
  }, el("span", { class: "name" }, nameOf(key)), el("span", { class: "last" }, figure(head.curves[key].at(-1)[1])), drawing(key, "small")));
  $("charts").replaceChildren(large, el("div", { class: "tiles" }, ...tiles));
}

/** The figures of held-out tasks as texts, with their intervals and numbers of tasks. */
function renderHeldOut() {
  $("held-out").hidden = head.held_out.length === 0;
  const cells = (tag, texts) => el("tr", {}, ...texts.map((text) => el(tag, {}, text)));
  $("held-out").append(el("table", {},
    el("thead", {}, cells("th", ["held-out", "figure", "tasks", "before", "after"])),
    el("tbody", {}, ...head.held_out.map((row) => cells("td", row)))));
}

function legend(curves) {
  const entries = curves.map((curve) => {
    const ends = [curve.points[0], curve.points.at(-1)].map((point) => figure(point[1]));
    return el("span", {}, mark(curve.kind), ` ${curve.name} `, el("b", {}, curve.points.length > 1 ? ends.join(" → ") : ends[0]));
  });
  return el("span", { class: "legend" }, ...entries);
}

function mark(kind) {
  const shape = kind === "train" ? svg("path", { class: "curve train", d: "M0,7 h16" }) : dot(kind, 8, 7);
  return svg("svg", { width: 16, height: 14, "aria-hidden": "true" }, shape);
}

function dot(kind, x, y) {
  if (kind === "greedy") return svg("path", { class: "dot greedy", d: `M${x},${y - 5} l5,5 l-5,5 l-5,-5 z` });
  return svg("circle", { class: `dot ${kind === "sampled" ? "sampled" : "train"}`, cx: x, cy: y, r: 3.5 });
}

function scaleOf(curves, size) {
  const [width, height, left, right, bottom, top] = SIZES[size];
  const steps = curves.flatMap((curve) => curve.points.map((point) => point[0]));
  const values = curves.flatMap((curve) => curve.points.map((point) => point[1]));
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (size === "large" && low >= 0 && high <= 1 && high > 0.25) [low, high] = [0, 1];
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.5 || 1;
  if (!(low === 0 && high === 1)) [low, high] = [low - pad, high + pad];
  const [first, last] = [Math.min(...steps), Math.max(...steps, Math.min(...steps) + 1)];
  return {
    width, height, left, right: width - right, top, bottom: height - bottom, low, high, first, last,
    x: (step) => left + ((width - right - left) * (step - first)) / (last - first),
    y: (value) => height - bottom - ((height - bottom - top) * (value - low)) / (high - low),
  };
}

function drawing(metric, size) {
  const curves = size === "large" ? curvesOf(metric) : [{ kind: "train", points: head.curves[metric] }];
  const scale = scaleOf(curves, size);
  const picture = svg("svg", { viewBox: `0 0 ${scale.width} ${scale.height}`, class: "chart", role: "img", "aria-label": `${metric} by step`, preserveAspectRatio: size === "large" ? null : "none" });
  if (size === "large") picture.append(...axes(scale));
  const [low, high] = state.ranges.step;
  if (low !== null && low === high) {
    picture.append(svg("line", { class: "chosen", x1: scale.x(low), x2: scale.x(low), y1: scale.top - 6, y2: scale.bottom }));
  }
  for (const curve of curves) picture.append(...drawn(curve, scale, size));
  if (size === "large") pointing(picture, curves, scale, metric);
  return picture;
}

function axes(scale) {
  const parts = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => {
    const value = scale.low + share * (scale.high - scale.low);
    const y = scale.y(value);
    return [svg("line", { class: "grid", x1: scale.left, x2: scale.right, y1: y, y2: y }),
      svg("text", { x: scale.left - 8, y: y + 4, "text-anchor": "end" }, figure(Number(value.toPrecision(2))))];
  });
  const ends = [[scale.first, "start"], [scale.last, "end"]];
  return [...parts, ...ends.map(([step, anchor]) => svg("text", { x: scale.x(step), y: scale.bottom + 18, "text-anchor": anchor }, `step ${step}`))];
}

function drawn(curve, scale, size) {
  const places = curve.points.map(([step, value]) => [scale.x(step), scale.y(value)]);
  const path = `M${places.map((place) => place.map((part) => part.toFixed(1)).join(",")).join(" L")}`;
  const parts = places.length > 1 ? [svg("path", { class: `curve ${curve.kind}`, d: path })] : [];
  if (size === "large" && (curve.kind !== "train" || places.length < 40)) {
    parts.push(...places.map(([x, y]) => dot(curve.kind, x, y)));
  }
  return parts;
}

/** The step nearest to the pointer is told; a click filters to it. Left and right arrows do the same from the keyboard. */
function pointing(picture, curves, scale, metric) {
  const steps = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[0])))].sort((a, b) => a - b);
  const line = svg("line", { class: "cross", y1: scale.top - 6, y2: scale.bottom, visibility: "hidden" });
  picture.append(line);
  let at = null;
  const point = (step, place) => {
    at = step;
    fill(line, { x1: scale.x(step), x2: scale.x(step), visibility: "visible" }, []);
    tip([el("b", {}, `step ${step}`), ...curves.flatMap((curve) => told(curve, step, metric)), el("i", {}, "click: only its episodes")], place);
  };
  const leave = () => { line.setAttribute("visibility", "hidden"); tip(null); };
  const choose = () => at !== null && go({ ranges: { ...state.ranges, step: state.ranges.step[0] === at ? [null, null] : [at, at] } });
  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    const step = scale.first + ((((event.clientX - box.left) * scale.width) / box.width - scale.left) / (scale.right - scale.left)) * (scale.last - scale.first);
    return steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best));
  };
  fill(picture, { tabindex: 0, role: "button", "aria-label": `${metric} by step; arrow keys choose a step, Enter filters the episodes`, on: {
    pointermove: (event) => point(nearest(event), { x: event.clientX, y: event.clientY }),
    pointerleave: leave, blur: leave,
    click: (event) => { at = nearest(event); choose(); },
    keydown: (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) point(steps[Math.max(0, Math.min(steps.length - 1, steps.indexOf(at ?? steps[0]) + move))], middle(picture));
      else if (event.key === "Enter") choose();
      else return;
      event.stopPropagation();
      event.preventDefault();
    },
  } }, []);
}

const told = (curve, step) => curve.points.filter((point) => point[0] === step)
  .map(([, value, line]) => `${curve.name}: ${figure(value)}   line ${line} of metrics.jsonl`);
