// One pair after the other. Which answer stands left is the server's chance; who gave it is told to nobody.

const ADDRESS = "/v1/astune/comparisons";
const CHOICES = [
  ["1", "1", "Answer 1"], ["2", "2", "Answer 2"], ["t", "tie", "As good"], ["b", "both_bad", "Both bad"], ["s", "skip", "Skip"],
];
const KEPT = { name: "astune-rater", token: "astune-token" };
let current = null; // the pair that is shown
let busy = false;

async function ask(options = {}) {
  const token = sessionStorage.getItem(KEPT.token);
  const given = new URLSearchParams(location.search);
  given.set("rater", localStorage.getItem(KEPT.name));
  const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const reply = await fetch(options.body ? ADDRESS : `${ADDRESS}?${given}`, { ...options, headers });
  const body = await reply.json();
  if (reply.ok) return body;
  if (reply.status === 401) sessionStorage.removeItem(KEPT.token);
  throw Object.assign(new Error(body.error?.message ?? reply.statusText), { status: reply.status });
}

/** Does one thing at a time, and says what went wrong; a token that is not known is asked for again. */
async function once(work) {
  if (busy) return;
  busy = true;
  enable(false);
  try {
    $("notice").hidden = true;
    await work();
  } catch (error) {
    $("notice").textContent = error.message;
    $("notice").hidden = false;
    if (error.status === 401) showWho();
  } finally {
    busy = false;
    enable(true);
    document.documentElement.dataset.ready = "true";
  }
}

const enable = (on) => document.querySelectorAll(".choice").forEach((button) => { button.disabled = !on; });

async function next() {
  const body = await ask();
  current = body.comparison;
  $("rater").textContent = localStorage.getItem(KEPT.name);
  $("progress").textContent = `${plural(body.progress.done, "vote")} of yours, ${count(body.progress.open)} open`;
  $("pair").hidden = current === null;
  showAgreement(body.agreement);
  if (current === null) return tell("There is nothing to compare: you have seen every pair. Reload when more was asked.");
  $("asked").replaceChildren(...current.messages.flatMap((one) => message(bubble(one))));
  current.answers.forEach((answer, i) => $(`answer${i + 1}`).replaceChildren(...message(bubble(answer))));
  $("comment").value = "";
  scrollTo(0, 0);
}

/** A message in OpenAI's shape as `message` shows it. */
function bubble({ role = "assistant", content, reasoning_content, tool_calls }) {
  const text = Array.isArray(content) ? content.map((part) => part.text ?? `[${part.type}]`).join("\n") : content ?? "";
  const calls = (tool_calls ?? []).map((call) => `${call.function?.name}(${call.function?.arguments ?? ""})`);
  return { role, text, reasoning: reasoning_content, calls };
}

function vote(choice) {
  if (current === null) return;
  once(async () => {
    const body = { id: current.id, rater: localStorage.getItem(KEPT.name), choice, comment: $("comment").value.trim() || null };
    const said = await ask({ method: "POST", body: JSON.stringify(body) });
    const mine = CHOICES.find(([, name]) => name === choice)[2];
    const judged = CHOICES.find(([, name]) => name === said.judge);
    tell(`Your last vote: ${mine.toLowerCase()}${judged ? `; the judge: ${judged[2].toLowerCase()}` : ""}.`);
    await next();
  });
}

const tell = (text) => { $("told").textContent = text; };

function showAgreement(rows) {
  $("agreement").hidden = rows.length === 0;
  $("agreement").querySelector("tbody").replaceChildren(...rows.map((row) => el("tr", {},
    ...[row.raters.join(" and "), count(row.n), percent(row.share), row.interval.map(percent).join(" to "), row.kappa === null ? "" : figure(row.kappa)].map((text) => el("td", {}, text)))));
}

function showWho() {
  $("pair").hidden = true;
  $("who").hidden = false;
  $("name").value = localStorage.getItem(KEPT.name) ?? "";
  $($("name").value ? "token" : "name").focus();
}

function begin() {
  const name = $("name").value.trim();
  if (!name) return $("name").focus();
  localStorage.setItem(KEPT.name, name);
  if ($("token").value) sessionStorage.setItem(KEPT.token, $("token").value);
  $("who").hidden = true;
  once(next);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input")) return event.key === "Enter" ? begin() : undefined;
  if (event.target.matches("textarea")) return event.key === "Escape" ? event.target.blur() : undefined;
  const choice = CHOICES.find(([key]) => key === event.key);
  if (!choice && event.key !== "c") return;
  event.preventDefault();
  if (choice) vote(choice[1]);
  else $("comment").focus();
}

buildTheme();
$("choices").append(...CHOICES.map(([key, name, text]) => el("button", { type: "button", class: "choice", "data-choice": name, on: { click: () => vote(name) } }, text, el("kbd", {}, key))));
$("begin").addEventListener("click", begin);
document.addEventListener("keydown", onKey);
if (localStorage.getItem(KEPT.name)) once(next);
else {
  showWho();
  document.documentElement.dataset.ready = "true";
}
