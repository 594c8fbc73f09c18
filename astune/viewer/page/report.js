"use strict";
(() => {
  const tip = document.getElementById("tip");
  const filled = new Set();

  const colour = () => document.querySelector('input[name="colour"]:checked')?.value ?? "advantage";

  // The span that sampled token number i, or null for context. Spans are in order of their start.
  function spanOf(spans, i) {
    return spans.find((span) => i >= span.start && i < span.start + span.logprobs.length) ?? null;
  }

  function kind(span) {
    if (span === null) return "context";
    if (span.shared) return "shared";
    if (span.excluded !== null) return "untrained";
    if (!span.advantage) return "even";
    return span.advantage > 0 ? "plus" : "minus";
  }

  function creditOf(span) {
    const advantage = span.advantage === null ? "" : `advantage ${span.advantage.toFixed(3)}`;
    if (span.excluded !== null) return `not trained: ${span.excluded.replaceAll("_", " ")}`;
    return span.shared ? "shared: an earlier row has this turn too" : advantage;
  }

  function paint(token) {
    const sampled = token.dataset.logprob !== undefined;
    const byProbability = sampled && colour() === "logprob";
    token.className = "token " + (byProbability ? "even" : token.dataset.kind);
    const doubt = byProbability ? 1 - Math.exp(Number(token.dataset.logprob)) : 0;
    token.style.background = byProbability ? `rgb(217 115 13 / ${(0.06 + 0.74 * doubt).toFixed(3)})` : "";
  }

  function tokenElement(line, i, spans) {
    const element = document.createElement("span");
    const text = line.texts === null ? String(line.ids[i]) : line.texts[i];
    const span = spanOf(spans, i);
    element.dataset.id = line.ids[i];
    element.dataset.place = i;
    element.dataset.kind = kind(span);
    if (span !== null) {
      element.dataset.logprob = span.logprobs[i - span.start];
      element.dataset.turn = span.turn;
      element.dataset.version = span.version;
      element.dataset.credit = creditOf(span);
    }
    for (const part of text.split(/(\n)/)) {
      if (part === "\n") {
        const mark = document.createElement("span");
        mark.className = "mark";
        mark.textContent = "⏎";
        element.append(mark, "\n");
      } else {
        element.append(part);
      }
    }
    paint(element);
    return element;
  }

  function fill(details) {
    if (filled.has(details)) return;
    filled.add(details);
    const source = document.getElementById("tokens-" + details.dataset.episode);
    const line = JSON.parse(source.textContent)[Number(details.dataset.timeline)];
    const stream = details.querySelector(".stream");
    stream.classList.toggle("ids", line.texts === null);
    const all = document.createDocumentFragment();
    let next = 0;
    for (let i = 0; i < line.ids.length; i++) {
      while (next < line.spans.length && i >= line.spans[next].start + line.spans[next].logprobs.length) next++;
      all.append(tokenElement(line, i, line.spans.slice(next, next + 1)));
    }
    stream.append(all);
    const sampled = stream.querySelector("[data-logprob]");
    if (sampled) stream.scrollTop = sampled.offsetTop - stream.offsetTop - 60;
  }

  function describe(token) {
    const data = token.dataset;
    const lines = [JSON.stringify(token.textContent.replaceAll("⏎\n", "\n")), `id ${data.id}   place ${data.place}`];
    if (data.logprob === undefined) {
      lines.push("context: read, not sampled");
    } else {
      const logprob = Number(data.logprob);
      lines.push(`logprob ${logprob.toFixed(4)}   probability ${(100 * Math.exp(logprob)).toFixed(1)} %`);
      lines.push(`turn ${data.turn}   policy version ${data.version}`);
      if (data.credit) lines.push(data.credit);
    }
    return lines.join("\n");
  }

  function showTip(event) {
    const token = event.target.closest?.(".stream .token");
    tip.hidden = !token;
    if (!token) return;
    tip.textContent = describe(token);
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${top}px`;
  }

  document.addEventListener("mousemove", showTip);
  for (const details of document.querySelectorAll("details.tokens")) {
    details.addEventListener("toggle", () => details.open && fill(details));
    if (details.open) fill(details);
  }
  for (const input of document.querySelectorAll('input[name="colour"]')) {
    input.addEventListener("change", () => document.querySelectorAll(".stream .token").forEach(paint));
  }
})();
