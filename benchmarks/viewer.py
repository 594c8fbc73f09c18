"""How quick `astune view` is: a run of 5,000 episodes and one of 32k tokens, written, opened and scrolled in Chromium.

    python benchmarks/viewer.py --episodes 5000 --tokens 32768

The limits it chases: a frame takes 16.7 ms at 60 Hz; what follows a click within 100 ms is felt as at once; and the
page cannot open before Chromium has read its file, which a page of the same blocks and no script of ours measures.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor import EpisodeLog, MetricsLog, RunDir
from astune.support.resources import tiny_model_dir
from astune.types import Episode, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput
from astune.viewer import write_view

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.viewer.chromium import Chromium  # type: ignore[import-not-found]

SENTENCE = "the agent reads a table of prices and asks the calculator for 12 * 7 then writes that café has 84 pens"
GROUP, STEP = 8, 128
FRAMES = 200

SCROLL = """
(async () => {
  const box = document.querySelector(SELECTOR);
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  await frame();
  for (let i = 0; i < FRAMES; i++) {
    const start = performance.now();
    box.scrollTop += PIXELS;
    await frame();
    await frame();
    times.push((performance.now() - start) / 2);
  }
  times.sort((a, b) => a - b);
  return [times[FRAMES / 2], times[Math.floor(FRAMES * 0.95)], times[FRAMES - 1]];
})()
"""
OPEN = """
(async () => {
  const start = performance.now();
  history.pushState(null, "", ADDRESS);
  dispatchEvent(new PopStateEvent("popstate"));
  while (!document.querySelector(".chunk .t")) await new Promise((done) => setTimeout(done, 2));
  await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done));
  return performance.now() - start;
})()
"""
SEARCH = """
(async () => {
  const start = performance.now();
  history.replaceState(null, "", ADDRESS);
  dispatchEvent(new PopStateEvent("popstate"));
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
})()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=32768, help="of the long episode")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, long = make_run(Path(folder), arguments.episodes, arguments.tokens)
        log = run.episodes_dir / "train.jsonl"
        print(f"run: {arguments.episodes:,} episodes, {log.stat().st_size / 1e6:.0f} MB of episodes/train.jsonl")
        before = peak_megabytes()
        start = time.perf_counter()
        page = write_view(run.path, Path(folder) / "view.html")
        print(f"written in {time.perf_counter() - start:.1f} s, {page.stat().st_size / 1e6:.1f} MB", end=", ")
        print(f"peak memory {before:.0f} MB before, {peak_megabytes():.0f} MB after")
        measure(page, bare(page), arguments.episodes, long, arguments.tokens)


def measure(page: Path, floor: Path, episodes: int, long: str, tokens: int) -> None:
    with Chromium() as browser:
        first = min(browser.open(floor.as_uri()) for _ in range(5))
        table = min(browser.open(page.as_uri()) for _ in range(5))
        print(f"table on the screen after {table:.2f} s; a page of the same blocks and no script: {first:.2f} s")
        tell("scroll of the table", browser.eval(filled(SCROLL, SELECTOR='".view"', PIXELS=700)))
        for name, address in (("sort by reward", "#sort=-reward"), ("search", "#q=calculator"), ("all", "#")):
            print(f"{name}: {browser.eval(filled(SEARCH, ADDRESS=repr(address))):.0f} ms")
        for what, key in (("short episode", f"train:{episodes // 2}"), (f"episode of {tokens:,} tokens", long)):
            times = []
            for _ in range(7):
                browser.open(page.as_uri())
                browser.wait("document.readyState === 'complete'")
                times.append(browser.eval(filled(OPEN, ADDRESS=repr(f"#episode={key}"))))
            print(f"{what} opened in {statistics.median(times):.0f} ms, at most {max(times):.0f} (limit 100)")
        tell("scroll of its tokens", browser.eval(filled(SCROLL, SELECTOR='".stream"', PIXELS=300)))
        tell("scroll of its tokens, pages", browser.eval(filled(SCROLL, SELECTOR='".stream"', PIXELS=-1500)))
        start = time.perf_counter()
        browser.press("3")
        browser.eval("new Promise(requestAnimationFrame).then(() => 1)")
        print(f"colours switched in {1000 * (time.perf_counter() - start):.0f} ms")
        print(f"tokens in the document: {browser.eval('document.querySelectorAll(`.stream .t`).length'):,}")
        print(f"complaints: {browser.errors or 'none'}; requests: {browser.requests or 'none'}")


def tell(what: str, times: list[float]) -> None:
    median, p95, most = times
    print(f"{what}: {median:.1f} ms per frame, p95 {p95:.1f}, most {most:.1f} (limit 16.7)")


def filled(script: str, **values: object) -> str:
    for name, value in {"FRAMES": FRAMES, **values}.items():
        script = script.replace(name, str(value))
    return script


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bare(page: Path) -> Path:
    """The page with a script that only says that it is there."""
    text = page.read_text("utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    script = '<script>document.documentElement.dataset.ready = "true";</script>'
    text = re.sub(r'<script>"use strict".*?</script>', lambda _: script, text, flags=re.DOTALL)
    floor = page.with_name("floor.html")
    floor.write_text(text, "utf-8")
    return floor


def make_run(folder: Path, episodes: int, tokens: int) -> tuple[RunDir, str]:
    """A run of that many episodes of two agents, and the key of a long one at its end."""
    run = RunDir.open(Config.model_validate({"astune": {"runs_dir": str(folder)}}), resume=False)
    chat_format = ChatFormat.load(tiny_model_dir())
    rng = random.Random(0)
    metrics = MetricsLog(run)
    with EpisodeLog(run) as log:
        for number in range(episodes):
            step = number // STEP + 1
            size = rng.choice((400, 800, 1600))
            episode = make_episode(chat_format, rng, f"task-{number // GROUP}", number, size, rng.randint(2, 6))
            log.write(episode, step=step, phase="train")
            if number % STEP == 0:
                figures = ("reward/mean", "loss", "grad_norm", "entropy", "tokens/sampled")
                metrics.log(step, {name: rng.random() for name in figures})
        long = make_episode(chat_format, rng, "long", episodes, tokens, 40, agents=("planner",))
        log.write(long, step=step, phase="train")
    metrics.close()
    return run, f"train:{episodes + 1}"


def make_episode(
    chat_format: ChatFormat,
    rng: random.Random,
    task: str,
    number: int,
    size: int,
    calls: int,
    agents: tuple[str, ...] = ("planner", "solver"),
) -> Episode:
    """`calls` turns and `size` tokens, shared out evenly between the agents, each of which has one row."""
    turns: list[Turn] = []
    lines: list[Timeline] = []
    for agent in agents:
        lines.append(make_row(chat_format, rng, agent, calls // len(agents), size // len(agents), turns))
    answer = f"The answer is {rng.randint(1, 99)}."
    reward = float(rng.random() < 0.5)
    return Episode(
        f"episode-{number}",
        Task(task, text_of(rng, 20), answer="84"),
        tuple(turns),
        tuple(lines),
        StopReason.COMPLETED,
        WorkflowOutput(answer),
        Verdict(reward, reward > 0, "compared with 84", judged_by="benchmark"),
        metrics={"seconds": 1.5},
    )


def make_row(
    chat_format: ChatFormat, rng: random.Random, agent: str, calls: int, size: int, turns: list[Turn]
) -> Timeline:
    """One conversation; its turns are added to `turns`."""
    ids: list[int] = []
    spans: list[Span] = []
    messages: list[dict[str, str]] = []
    for call in range(calls):
        part = -(-size // calls)
        read, wrote = text_of(rng, part), text_of(rng, part)
        ids += chat_format.encode(read)[: part - part // 3]
        prompt, output = tuple(ids), tuple(chat_format.encode(wrote)[: part // 3])
        logprobs = tuple(-rng.expovariate(2.0) for _ in output)
        messages = [*messages, {"role": "user", "content": read[:300]}]
        response = {"role": "assistant", "content": wrote[:300]}
        spans.append(Span(len(turns), len(ids), len(ids) + len(output), call % 3, 1.0, True, logprobs))
        turns.append(
            Turn(agent, prompt, output, logprobs, call % 3, "stop", messages=tuple(messages), response=response)
        )
        messages = [*messages, response]
        ids += output
    return Timeline(agent, tuple(ids), tuple(spans))


def text_of(rng: random.Random, length: int) -> str:
    words = SENTENCE.split()
    return " ".join(rng.choice(words) + ("\n" if rng.random() < 0.05 else "") for _ in range(length))


if __name__ == "__main__":
    main()
