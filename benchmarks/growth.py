"""Does anything grow faster than the work? Time, memory and bytes on disk at three sizes, each twice the one before.

    .venv/bin/python benchmarks/growth.py                                   # five minutes, on two free cores
    .venv/bin/python benchmarks/growth.py view report --sizes 50000 100000 200000

Every figure is from a process of its own. Time is the processor's, so that a busy machine can be borne. Memory is the
peak of the process's resident set over what it was before the work began, disk what the work has written. The slope is
that of the line through the logarithms: 1 is linear, 2 is quadratic. Engines answer at once.

What cannot be linear in the turns of a conversation is its time: every request has the whole history, so that it must
be written as JSON, read and compared with what is known, and templates look through it for the last question. Only that
is done for all of it; nothing is rendered, tokenized, kept or written again. So the time of `talk` is shown and not
judged. Ends with 1 if another slope is over 1.25, memory below 20 MB left out, which is the allocator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
from bench_table import table_of
from readers import peak_mb, reader_config, resident_mb, write_rows
from rich.console import Console

from astune.config.schema import AstuneConfig, Config, RolloutConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.monitor import EpisodeLog, MetricsLog, RunDir
from astune.monitor.episodes import EpisodeRecord, episode_to_row, read_episodes
from astune.monitor.jsonl import LineFile
from astune.online.service.serving import Model, OnlineService
from astune.online.store.versions import AS_CONFIGURED
from astune.recordings.recording import read_recordings
from astune.recordings.rescore import judge_anew
from astune.rollout.group import run_groups
from astune.rollout.setup import RolloutSetup
from astune.support.resources import tiny_model_dir
from astune.task_reader.task_sets import read_task_sets
from astune.types import Episode, Generation, Sampling, StopReason, Task, WorkflowOutput
from astune.viewer import write_report, write_view
from astune.workflow.tuner import Tuner
from astune.workflow.workflow_base import as_workflow

TEXT = "the agent reads a table of prices and asks the calculator for 12 * 7 then writes that it has 84 pens "
MOST_SLOPE, LEAST_MB = 1.25, 20.0
OF_A_STEP = 128
"""Episodes."""
CALLS = 4
"""Of a conversation with the service."""
RATED = 32
"""Answers of which a version is made."""
Work = Callable[[int, Path], Callable[[], object]]
"""Makes ready for a size in a folder, and gives what is measured."""


class AtOnce:
    """A policy without limits that answers at once."""

    context_length = 2**30

    def __init__(self, chat_format: ChatFormat) -> None:
        stop = chat_format.stop_token_ids[0]
        self._answers = [(*chat_format.encode(f"Answer {number}: {TEXT}"), stop) for number in range(50)]
        self._asked = 0

    async def generate(self, prompt_ids: object, sampling: Sampling) -> Generation:
        self._asked += 1
        ids = self._answers[self._asked % len(self._answers)]
        return Generation(ids, (-0.5,) * len(ids), 0, "stop")


def shipped() -> ChatFormat:
    return ChatFormat.load(tiny_model_dir())


# -- an episode of one conversation


async def talk(turns: int, chat_format: ChatFormat) -> Episode:
    sampling = Sampling(max_tokens=2**20)
    tracker = ContextTracker(AtOnce(chat_format), chat_format, sampling, max_turns=turns, seed=1)
    messages: list[dict[str, Any]] = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{number}: {2 * TEXT}"})
        request = ChatRequest([dict(message) for message in messages])  # an agent's requests are made anew
        messages.append(dict((await tracker.chat("a", request)).message))
    return Episode("e", Task("t", "?"), tracker.turns, tracker.timelines(), StopReason.COMPLETED)


def talking(turns: int, folder: Path) -> Callable[[], object]:
    chat_format = shipped()
    asyncio.run(talk(3, chat_format))
    return lambda: asyncio.run(talk(turns, chat_format))


def writing(turns: int, folder: Path) -> Callable[[], object]:
    episode = asyncio.run(talk(turns, shipped()))

    def write() -> None:
        with LineFile(folder / "train.jsonl") as file:
            file.append_plain(episode_to_row(EpisodeRecord(1, "train", episode)))

    return write


def reading(turns: int, folder: Path) -> Callable[[], object]:
    writing(turns, folder)()
    return lambda: list(read_episodes(folder / "train.jsonl"))


# -- a run of many episodes


def make_run(episodes: int, folder: Path) -> RunDir:
    """Of episodes with two turns, all of one conversation but for their names and rewards."""
    run = RunDir.open(Config.model_validate({"astune": {"runs_dir": str(folder)}}), resume=False)
    row = episode_to_row(EpisodeRecord(1, "train", asyncio.run(talk(2, shipped()))))
    chance, metrics = Random(0), MetricsLog(run)
    with LineFile(run.episodes_dir / "train.jsonl") as file:
        for number in range(episodes):
            step, reward, task_id = number // OF_A_STEP + 1, float(chance.random() < 0.5), f"t{number // 8}"
            judged = {"reward": reward, "passed": reward > 0, "verdict": {"reason": "", "metrics": {}, "judged_by": ""}}
            told = {"answer": "84", "output": {"reward": None, "metrics": {}}, "metrics": {"seconds": 1.0}}
            task = {**row["task"], "task_id": task_id, "answer": "84"}
            names = {"step": step, "episode_id": f"{task_id}/{number % 8}", "task_id": task_id, "task": task}
            file.append_plain({**row, **names, **judged, **told})
            if number % OF_A_STEP == 0:
                metrics.log(step, {name: chance.random() for name in ("reward/mean", "loss", "grad_norm", "entropy")})
    metrics.close()
    return run


def viewing(episodes: int, folder: Path) -> Callable[[], object]:
    run = make_run(episodes, folder)
    return lambda: write_view(run.path, folder / "view.html")


def reporting(episodes: int, folder: Path) -> Callable[[], object]:
    run = make_run(episodes, folder)
    return lambda: write_report(run.path)


def resuming(episodes: int, folder: Path) -> Callable[[], object]:
    """The last step is played again."""
    run = make_run(episodes, folder)
    return lambda: EpisodeLog(run).truncate_after(episodes // OF_A_STEP)


def rescoring(episodes: int, folder: Path) -> Callable[[], object]:
    run = make_run(episodes, folder)
    config = AstuneConfig.model_validate({"task_judge": {"judge_protocol": "MathAnswerAsJudge"}})

    async def rescore() -> int:
        return len([one.change async for one in judge_anew(read_recordings(run.episodes_dir), lambda _: config)])

    return lambda: asyncio.run(rescore())


# -- many tasks, many episodes at once, a day of the online service


def reading_tasks(tasks: int, folder: Path) -> Callable[[], object]:
    path = write_rows(folder / "tasks.jsonl", tasks)
    return lambda: read_task_sets(reader_config(path))


async def _plays(task: Task, tuner: Tuner) -> WorkflowOutput:
    messages: list[dict[str, Any]] = []
    for number in range(4):
        messages.append({"role": "user", "content": f"{number}: {task.query} {TEXT}"})
        messages.append(dict((await tuner.chat(messages)).message))
        await asyncio.sleep(0)
    return WorkflowOutput("84", reward=1.0)


def playing(episodes: int, folder: Path) -> Callable[[], object]:
    chat_format = shipped()
    policy = AtOnce(chat_format)
    setup = RolloutSetup(policy, chat_format, as_workflow(_plays), None, RolloutConfig(), 60.0)
    tasks = [Task(f"t{number}", f"Question {number}?") for number in range(episodes // 8)]
    played = run_groups(
        tasks, 8, setup, seed=1, sampling=Sampling(max_tokens=999), max_concurrent=episodes, label="train/1"
    )
    return lambda: asyncio.run(played)


async def converse(service: OnlineService, calls: int, rated: Callable[[], Awaitable[object]] | None = None) -> None:
    """Conversations of four calls, a thumb for each. `rated` is awaited after every `RATED` thumbs."""
    transport = httpx.ASGITransport(service.app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for number in range(calls // CALLS):
            messages: list[dict[str, Any]] = []
            for call in range(CALLS):
                messages.append({"role": "user", "content": f"{number}, {call}: {TEXT}"})
                body = {"model": "policy", "messages": messages, "user": f"u{number % 100}"}
                reply = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
                messages.append(reply["choices"][0]["message"])
                thumb = {"msg_ids": [reply["id"]], "reward": float(call % 2)}
                (await client.post("/feedback", json=thumb)).raise_for_status()
            if rated is not None and (number + 1) * CALLS % RATED == 0:
                await rated()


def serving(calls: int, folder: Path) -> Callable[[], object]:
    chat_format = shipped()
    config = Config.model_validate({"astune": {"online": {"store": f"sqlite:///{folder}/store.db"}}})
    service = OnlineService(config, Model("policy", chat_format, lambda version: AtOnce(chat_format), AS_CONFIGURED))
    return lambda: (asyncio.run(converse(service, calls)), service.close())


def committing(calls: int, folder: Path) -> Callable[[], object]:
    """The shipped model answers, learns from every `RATED` thumbs, and answers on as the version that was made."""
    from astune.backbone.local.engine import load_engine  # torch is for this case alone
    from astune.online.service.models import local_model
    from astune.online.training.log import CommitLog
    from astune.online.training.trainer import Trainer

    online = {"folder": str(folder), "commit": {"every_seconds": None, "every_episodes": RATED}}
    config = Config.model_validate({"astune": {"online": online, "rollout": {"max_tokens": 16}}})
    service = OnlineService(config, local_model(config))
    log = CommitLog(folder, service.database, Config())
    trainer = Trainer(config, load_engine, service.database, folder)
    made: list[int | None] = []

    async def commit() -> None:
        row = await trainer.tick()
        assert row is not None and row.state == "made", row
        log.catch_up()
        await service.versions.poll()
        made.append(row.version)

    def run() -> None:
        asyncio.run(converse(service, calls, commit))
        assert made == [*range(1, calls // RATED + 1)]
        trainer.leave()
        log.close()
        service.close()

    return run


CASES: dict[str, tuple[str, Work, tuple[int, int, int]]] = {
    "talk": ("turns of a conversation", talking, (250, 500, 1000)),
    "write": ("turns of an episode, written", writing, (100, 200, 400)),
    "read": ("turns of an episode, read", reading, (100, 200, 400)),
    "view": ("episodes of a run, view.html", viewing, (1000, 2000, 4000)),
    "report": ("episodes of a run, report.html", reporting, (1000, 2000, 4000)),
    "resume": ("episodes of a run, gone on with", resuming, (1000, 2000, 4000)),
    "rescore": ("episodes of a run, judged anew", rescoring, (1000, 2000, 4000)),
    "tasks": ("tasks read and checked", reading_tasks, (100_000, 200_000, 400_000)),
    "at_once": ("episodes at once", playing, (500, 1000, 2000)),
    "online": ("calls and thumbs of the service", serving, (200, 400, 800)),
    "commits": ("the same with a version of every 32", committing, (256, 512, 1024)),
}
TIME_NOT_JUDGED = frozenset({"talk"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--sizes", type=int, nargs=3, help="in place of those of the cases")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [case for case in options.cases if case not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; expected {', '.join(CASES)}")
    if options.size:
        print(json.dumps(measured(CASES[options.cases[0]][1], options.size)))
        return 0
    rows, steep = [], []
    for case in options.cases or CASES:
        title, _, sizes = CASES[case]
        sizes = tuple(options.sizes or sizes)
        found = [in_process(case, size) for size in sizes]
        slopes = {name: slope(sizes, [each[name] for each in found]) for name in found[0]}
        if case in TIME_NOT_JUDGED:
            steep += [case for name in ("MB", "disk") if is_steep(name, slopes, found)]
        else:
            steep += [case for name in slopes if is_steep(name, slopes, found)]
        for size, each in zip(sizes, found, strict=True):
            rows.append([title, f"{size:,}", f"{each['s']:.2f}", f"{each['MB']:.0f}", f"{each['disk']:.1f}"])
        rows.append([f"{title}: slope", "", *(show(slopes[name]) for name in ("s", "MB", "disk"))])
    columns = ("", "size", "seconds", "MB of memory", "MB on disk")
    Console(width=120).print(table_of("Size against time, memory and disk", columns, rows))
    return int(bool(steep))


def in_process(case: str, size: int) -> dict[str, float]:
    command = [sys.executable, __file__, case, "--size", str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measured(work: Work, size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = work(size, folder)
        before = bytes_in(folder)
        with peak_counted_anew():
            resident, started = resident_mb(), time.process_time()
            result = run()
            seconds = time.process_time() - started
            most = peak_mb() - resident
        del result
        return {"s": seconds, "MB": most, "disk": (bytes_in(folder) - before) / 1e6}


@contextmanager
def peak_counted_anew() -> Iterator[None]:
    """The peak of before does not count: what makes ready takes memory too."""
    Path("/proc/self/clear_refs").write_text("5")
    yield


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def slope(sizes: tuple[int, ...], values: list[float]) -> float | None:
    if min(values) <= 0.05:
        return None
    return statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, values))).slope


def is_steep(name: str, slopes: dict[str, float | None], found: list[dict[str, float]]) -> bool:
    value = slopes[name]
    small = name == "MB" and found[-1]["MB"] < LEAST_MB
    return value is not None and value > MOST_SLOPE and not small


def show(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
