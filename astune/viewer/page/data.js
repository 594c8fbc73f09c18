// What the page holds: a head with a row for every episode, and blocks of whole episodes, unpacked when one is opened.

const MOST_BLOCKS = 12; // that stay unpacked

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function readHead() {
  const head = await unpack($("head").textContent);
  const { episodes: columns, ...rest } = head;
  const rows = columns.line.map((_, i) => makeRow(head, columns, i));
  return { ...rest, rows };
}

function makeRow(head, columns, i) {
  const [task, query, reference] = head.tasks[columns.task[i]];
  const row = {
    phase: head.phases[columns.phase[i]],
    end: head.ends[columns.end[i]],
    agents: columns.agents[i].map((number) => head.agents[number]),
    task, query, reference,
  };
  for (const name of ["line", "step", "reward", "passed", "turns", "sampled", "answer", "message", "id", "seconds", "block"]) {
    row[name] = columns[name][i];
  }
  row.key = `${row.phase}:${row.line}`;
  row.group = JSON.stringify([row.phase, row.step, row.task]);
  row.outcome = outcomeOf(row);
  row.ended = row.end.error ?? plain(row.end.stop);
  row.text = [task, query, row.answer, reference, row.message, row.end.error, row.id].join("\n").toLowerCase();
  return row;
}

const OUTCOMES = {
  passed: { sign: "✓", meaning: "The judge says that it succeeded." },
  failed: { sign: "✗", meaning: "The judge says that it did not succeed." },
  scored: { sign: "●", meaning: "It has a reward; the judge knows more and less, not success." },
  "not judged": { sign: "–", meaning: "It has no reward: nobody judged it." },
  error: { sign: "!", meaning: "It ended with an error." },
};

function outcomeOf(row) {
  if (row.end.error !== null) return "error";
  if (row.reward === null) return "not judged";
  return row.passed === null ? "scored" : row.passed ? "passed" : "failed";
}

const blocks = new Map(); // number -> promise, the latest used last

/** The whole episode of a row, and the texts of its token ids (null where the tokenizer was gone). */
async function readEpisode(row) {
  if (!blocks.has(row.block)) blocks.set(row.block, readBlock(row.block));
  const promise = blocks.get(row.block);
  blocks.delete(row.block);
  blocks.set(row.block, promise);
  if (blocks.size > MOST_BLOCKS) blocks.delete(blocks.keys().next().value);
  const { episodes, texts } = await promise;
  const episode = episodes[row.key];
  if (!episode.ready) wholeLanes(episode);
  return { ...episode, texts };
}

/** A page is usable before all of it has been read: a block may still have to come. */
async function readBlock(number) {
  if ($(`block-${number}`) === null && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  return unpack($(`block-${number}`).textContent);
}

/** Gives every lane its whole ids, and every shared span the logprobs of the span that was sampled. */
function wholeLanes(episode) {
  const sampled = new Map();
  for (const lane of episode.lanes) {
    const start = lane.from === null ? [] : episode.lanes[lane.from[0]].ids.slice(0, lane.from[1]);
    lane.ids = start.concat(lane.ids);
    lane.odd = new Map(lane.odd);
    for (const span of lane.spans) if (!span.shared) sampled.set(span.turn, span);
  }
  for (const lane of episode.lanes) for (const span of lane.spans) span.logprobs ??= sampled.get(span.turn).logprobs;
  episode.homes = homesOf(episode);
  episode.ready = true;
}

/** By turn the lane and the span in which it was sampled. */
function homesOf(episode) {
  const homes = new Map();
  episode.lanes.forEach((lane, number) => {
    for (const span of lane.spans) if (!span.shared) homes.set(span.turn, { lane: number, span });
  });
  return homes;
}
