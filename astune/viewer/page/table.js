// The table of episodes. Only the rows in view exist, so that any number scrolls alike.

const ROW = 34; // pixels
const SPARE = 12; // rows above and below the view

const COLUMNS = {
  reward: { title: "reward", value: (row) => row.reward, cell: rewardCell, down: true },
  outcome: { title: "outcome", value: (row) => row.outcome, cell: (row) => el("span", { class: `outcome ${row.outcome.replace(" ", "-")}` }, sign(row.outcome), row.outcome) },
  step: { title: "step", value: (row) => row.step, cell: (row) => String(row.step), number: true },
  phase: { title: "phase", value: (row) => row.phase, cell: (row) => row.phase },
  task: { title: "task", value: (row) => row.task, cell: (row) => row.task },
  query: { title: "question", value: (row) => row.query, cell: (row) => row.query },
  answer: { title: "answer, or error", value: (row) => row.answer, cell: (row) => (row.message ? el("span", { class: "bad" }, row.message) : row.answer) },
  turns: { title: "turns", value: (row) => row.turns, cell: (row) => count(row.turns), number: true, down: true },
  sampled: { title: "tokens", value: (row) => row.sampled, cell: (row) => count(row.sampled), number: true, down: true },
  agents: { title: "agents", value: (row) => row.agents.join(), cell: (row) => row.agents.join(", ") },
  ended: { title: "ended", value: (row) => row.ended, cell: (row) => el("span", { class: row.end.error ? "bad" : row.end.stop === "completed" ? "dim" : "warn" }, row.ended) },
};

const table = { items: [], rows: [], made: new Map(), selected: 0, view: null, body: null }; // made: by item its row in view

function rewardCell(row) {
  if (row.reward === null) return el("span", { class: "dim" }, "none");
  const [low, high] = head.rewards;
  const bar = el("span", { class: "bar" }, el("span", {}));
  bar.firstChild.style.width = `${high > low ? (100 * (row.reward - low)) / (high - low) : 100}%`;
  return el("span", { class: "meter" }, el("b", {}, figure(row.reward)), bar);
}

function buildTable() {
  if (head.agents.length < 2) delete COLUMNS.agents;
  table.body = el("div", { class: "rows", role: "rowgroup" });
  table.head = el("div", { class: "row head", role: "row" });
  table.view = el("div", { class: head.agents.length < 2 ? "view" : "view several", role: "grid", tabindex: 0, "aria-label": "Episodes; arrow keys choose, Enter opens" },
    el("div", { role: "rowgroup", class: "headgroup" }, table.head), table.body);
  table.view.addEventListener("scroll", () => requestAnimationFrame(renderRows), { passive: true });
  table.body.addEventListener("click", (event) => {
    const row = event.target.closest("[data-item]");
    if (row) act(Number(row.dataset.item), event);
  });
  table.head.addEventListener("click", (event) => event.target.closest("[data-column]") && sortBy(event.target.closest("[data-column]").dataset.column));
  $("table").replaceChildren(table.view);
  new ResizeObserver(renderRows).observe(table.view);
}

function sortBy(name) {
  const first = `${COLUMNS[name].down ? "-" : ""}${name}`;
  const second = COLUMNS[name].down ? name : `-${name}`;
  go({ sort: state.sort === first ? second : state.sort === second ? "" : first });
}

function act(item, event) {
  const found = table.items[item];
  if (found.members) return go({ task: state.task === found.task ? "" : found.task });
  table.selected = item;
  if (event.ctrlKey || event.metaKey) return window.open(address({ ...state, episode: found.key, turn: null }));
  go({ episode: found.key, turn: null });
}

function renderTable() {
  table.rows = sorted(passing(head.rows));
  table.items = state.grouped ? grouped(table.rows) : table.rows;
  table.selected = Math.max(0, Math.min(table.selected, table.items.length - 1));
  table.head.replaceChildren(...Object.entries(COLUMNS).map(([name, column]) => {
    const order = state.sort === name ? "ascending" : state.sort === `-${name}` ? "descending" : "none";
    const arrow = { ascending: " ↑", descending: " ↓", none: "" }[order];
    return el("div", { class: `cell ${name}${column.number ? " number" : ""}`, role: "columnheader", "aria-sort": order },
      el("button", { type: "button", "data-column": name, title: `Sort by ${column.title}` }, column.title, arrow));
  }));
  table.body.style.height = `${table.items.length * ROW}px`;
  table.view.setAttribute("aria-rowcount", table.items.length + 1);
  const all = head.rows.length;
  $("count").textContent = table.rows.length === all ? plural(all, "episode") : `${count(table.rows.length)} of ${plural(all, "episode")}`;
  table.made.clear();
  table.body.replaceChildren();
  renderRows();
  choose(table.selected);
}

/** Attempts at the same task in the same step under a line of their own, in the order of their first. */
function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(row.group)) groups.set(row.group, { task: row.task, members: [] });
    groups.get(row.group).members.push(row);
  }
  return [...groups.values()].flatMap((group) => [group, ...group.members]);
}

function renderRows() {
  if (!table.items.length) {
    table.body.style.height = "auto";
    table.body.replaceChildren(el("p", { class: "empty" }, head.rows.length ? "No episode passes these filters." : "This run has no episodes yet."));
    return;
  }
  const first = Math.max(0, Math.floor(table.view.scrollTop / ROW) - SPARE);
  const last = Math.min(table.items.length, Math.ceil((table.view.scrollTop + table.view.clientHeight) / ROW) + SPARE);
  for (const [i, row] of table.made) if (i < first || i >= last) { row.remove(); table.made.delete(i); }
  for (let i = first; i < last; i++) {
    if (table.made.has(i)) continue;
    table.made.set(i, table.items[i].members ? groupRow(i) : episodeRow(i));
    table.body.append(table.made.get(i));
  }
}

function placed(i, classes, attributes, cells) {
  const row = el("div", {
    id: `row-${i}`, class: `row ${classes}${i === table.selected ? " selected" : ""}`, role: "row", "data-item": i,
    "aria-rowindex": i + 2, "aria-selected": String(i === table.selected), ...attributes,
  }, ...cells);
  row.style.top = `${i * ROW}px`;
  return row;
}

function episodeRow(i) {
  const row = table.items[i];
  const cells = Object.entries(COLUMNS).map(([name, column]) =>
    el("div", { class: `cell ${name}${column.number ? " number" : ""}`, role: "gridcell" }, column.cell(row)));
  return placed(i, state.grouped ? "member" : "", { title: `step ${row.step}, line ${row.line} of ${head.lines[row.phase]}` }, cells);
}

function groupRow(i) {
  const { task, members } = table.items[i];
  const rewards = members.map((row) => row.reward).filter((reward) => reward !== null);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const spread = rewards.some((reward) => reward !== rewards[0]) ? "" : ", all alike";
  const text = `${plural(members.length, "attempt")} at ${task}, step ${members[0].step}, ${members[0].phase}`;
  const dots = members.slice(0, 40).map((row) => sign(row.outcome));
  return placed(i, "group", { title: "Show only this task" }, [el("div", { class: "cell whole", role: "gridcell" },
    el("b", {}, rewards.length ? `mean ${figure(mean)}${spread}` : "no reward"), el("span", {}, text), el("span", { class: "dots" }, ...dots))]);
}

/** Moves the chosen row and keeps it in view. */
function select(i) {
  const chosen = Math.max(0, Math.min(table.items.length - 1, i));
  const top = chosen * ROW;
  const room = table.view.clientHeight - table.head.offsetHeight - ROW;
  if (top < table.view.scrollTop) table.view.scrollTop = top;
  else if (top > table.view.scrollTop + room) table.view.scrollTop = top - room;
  renderRows();
  choose(chosen);
}

function choose(i) {
  for (const [item, on] of [[table.selected, false], [i, true]]) {
    table.made.get(item)?.classList.toggle("selected", on);
    table.made.get(item)?.setAttribute("aria-selected", String(on));
  }
  table.selected = i;
  table.view.setAttribute("aria-activedescendant", `row-${i}`);
}
