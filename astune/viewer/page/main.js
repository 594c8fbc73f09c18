// Reads the head, then shows what the address asks for.

let head = null;

function show(name) {
  for (const other of ["run", "episode"]) $(other).hidden = other !== name;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

function render() {
  if (state.episode) {
    renderTable(); // its order is that of n and p
    return renderEpisode();
  }
  shown.row = null;
  tip(null);
  document.title = head.title;
  show("run");
  $("search").value = state.q;
  $("grouped").checked = state.grouped;
  renderCharts();
  renderCandidates();
  renderFilters();
  renderChips();
  renderTable();
}

function renderFacts() {
  const facts = [head.facts["model.path"] && `model ${head.facts["model.path"]}`, head.facts.backbone, plural(head.rows.length, "episode")].filter(Boolean);
  $("facts").append(...facts.map((fact) => el("span", {}, fact)));
  const lost = Object.entries(head.left_out_by_file).map(([file, lines]) => `${plural(lines, "line")} of ${file}`);
  const first = head.left_out[0];
  if (lost.length) notice(`Left out, as they could not be read: ${lost.join(", ")}. The first: ${first.file}, line ${first.line}: ${first.why}.`);
}

function listen() {
  let waiting = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => go({ q: $("search").value }), 60);
  });
  $("search").addEventListener("keydown", (event) => { if (event.key === "Enter") { $("search").blur(); table.view.focus(); } });
  $("grouped").addEventListener("change", () => go({ grouped: $("grouped").checked }));
  $("home").addEventListener("click", () => go({ episode: null, turn: null }));
  $("narrow").addEventListener("click", () => {
    const open = $("browse").classList.toggle("open");
    $("narrow").setAttribute("aria-expanded", String(open));
  });
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", () => { state = readAddress(); render(); });
  addEventListener("scroll", () => tip(null), { passive: true });
}

async function start() {
  buildTheme();
  buildHelp();
  if (typeof DecompressionStream === "undefined") return notice("This browser is too old to unpack the page: it knows no DecompressionStream.");
  head = await readHead();
  const rewards = head.rows.map((row) => row.reward).filter((reward) => reward !== null);
  head.rewards = rewards.reduce(([low, high], reward) => [Math.min(low, reward), Math.max(high, reward)], [0, 0]);
  state = readAddress();
  renderFacts();
  renderHeldOut();
  buildTable();
  listen();
  render();
  table.view.focus({ preventScroll: true });
  document.documentElement.dataset.ready = "true";
}

start();
