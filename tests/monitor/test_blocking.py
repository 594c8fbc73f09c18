from __future__ import annotations

import asyncio
import pdb
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astune.monitor import blocking
from astune.monitor.blocking import Line, LoopWatch, line_of
from astune.support.current_episode import in_episode
from astune.support.resources import PACKAGE


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "EVERY", 0.01)
    monkeypatch.setattr(blocking, "NOTICED", 0.03)


@pytest.mark.fault(
    "Agents and the engine",
    "A workflow blocks the event loop: time.sleep, a synchronous call, a loop without await",
    "File and line on the terminal while it blocks; the seconds by line in the metrics of the step",
)
def test_a_loop_without_await_is_told_of_while_it_runs_with_its_line_and_its_episode() -> None:
    told: list[str] = []

    async def main() -> dict[str, float]:
        with LoopWatch(told.append), in_episode("train/1/t/0") as this:
            until = time.monotonic() + 10
            while not told and time.monotonic() < until:
                time.sleep(0.001)
            return this.blocked

    blocked = asyncio.run(main())
    (line,) = blocked
    assert line.startswith("test_blocking.py:") and blocked[line] >= 0.03
    assert f"train/1/t/0: {__file__}:{line.partition(':')[2]}: `time.sleep(0.001)`" in told[0]
    assert "asyncio.to_thread" in told[0]


def test_a_line_is_told_of_again_only_when_it_took_ten_times_longer() -> None:
    told: list[str] = []
    watch = LoopWatch(told.append)
    for _ in range(35):
        watch._count(Line("agent.py", 1, None))
    assert len(told) == 2


def test_code_that_awaits_is_not_told_of() -> None:
    told: list[str] = []

    async def main() -> None:
        with LoopWatch(told.append):
            for _ in range(60):
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert not told


def seen_from(file: str) -> Line | None:
    """What is seen while a callback of the event loop, here, calls code of `file`."""
    found: list[Line | None] = []
    names: dict[str, Any] = {"found": found, "line_of": line_of, "sys": sys}
    exec(compile("def run():\n    found.append(line_of(sys._getframe()))", file, "exec"), names)

    async def main() -> None:
        with in_episode("train/1/t/0"):
            names["run"]()

    asyncio.run(main())
    return found[0]


SAMPLER = PACKAGE / "backbone" / "local" / "sampler.py"


@pytest.mark.parametrize("file", [SAMPLER, pdb.__file__, "<frozen importlib._bootstrap>"])
def test_what_the_model_computes_a_debugger_that_waits_and_an_import_do_not_count(file: Path | str) -> None:
    assert seen_from(str(file)) is None


def test_a_library_that_blocks_is_told_of_by_the_line_that_calls_it() -> None:
    line = seen_from("/usr/lib/python3/site-packages/requests/api.py")
    assert line is not None and line.file == __file__
    assert line.episode is not None and line.episode.episode_id == "train/1/t/0"


def test_what_stands_around_the_event_loop_does_not_count() -> None:
    assert line_of(sys._getframe()) is None
