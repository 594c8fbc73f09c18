"""The short form of every benchmark that has something beside it in the same run, compared with the last ratios that
were recorded.

    make bench                                                       # all of them
    .venv-bench/bin/python benchmarks/ratios.py --only sampler gateway
    .venv-bench/bin/python benchmarks/ratios.py --record             # what later runs are compared with

A ratio that is worse by a fifth than the recorded one is measured a second time, as short forms are noisy; if it still
is, it is printed in red and the exit code is 1, as it is where a benchmark fails. Each benchmark's own tables are in
`runs/bench`. Ratios are taken within one run, between programs that take turns; still, leave the machine alone
meanwhile, as a share of two cores is not the same for one process and for two.

Not here: `async_rollouts.py` and `scripts/demo_seeds.py` (whole trainings), `verl_step.py` (another environment),
`gpu_check.py` (a GPU), `viewer.py` (Chromium), `memory.py`, `rubrics.py` and `cluster_model.py` (no speed).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_table import FILE, Written, read_tables, table_of
from rich.console import Console

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
WORSE = 0.8
"""The share of the recorded ratio below which one has fallen."""


@dataclass(frozen=True)
class Ratio:
    """What is compared: `of` the tables of a benchmark."""

    name: str
    of: Callable[[list[Written]], float]
    more_is_better: bool = True

    def share(self, now: float, recorded: float) -> float:
        """How good `now` is beside `recorded`: above 1 where it is better."""
        return now / recorded if self.more_is_better else recorded / now


@dataclass(frozen=True)
class Part:
    """A benchmark in its short form; `seconds` is the longest that it may take."""

    script: str
    arguments: str
    seconds: float
    ratios: Sequence[Ratio]

    @property
    def name(self) -> str:
        return Path(self.script).stem


TRL, AGENT, CHAT = "x TRL 1.16.0", "ASTune, AgentScope agent", "ASTune, tuner.chat"
OURS, LIMIT = "on tuner.model(), ms", "AgentScope alone, ms"
LINES = "times limit"
PARTS = (
    Part(
        "local_vs_trl.py",
        "--steps 3",
        400,
        (
            Ratio("a step with an AgentScope agent, times TRL", lambda t: t[0](TRL, AGENT)),
            Ratio("a step with an AgentScope agent, prompts of 400 tokens, times TRL", lambda t: t[1](TRL, AGENT)),
            Ratio("a step with tuner.chat, times the floor", lambda t: t[0]("x floor", CHAT), False),
            Ratio(
                "a step with tuner.chat, prompts of 400 tokens, times the floor", lambda t: t[1]("x floor", CHAT), False
            ),
        ),
    ),
    Part(
        "demo_vs_trl.py",
        "--steps 6 --every 6 --tasks 50",
        200,
        (
            Ratio(
                "a step of the demo, several turns with a tool, times TRL",
                lambda t: t[0]("s a step", "42", f"{TRL[2:]}, its own loop") / t[0]("s a step", "42", AGENT),
            ),
        ),
    ),
    Part(
        "sampler.py",
        "--rounds 2",
        300,
        tuple(
            Ratio(f"tokens sampled, {n} in flight, times generate", lambda t, n=n: t[0]("ratio", "tiny", "float32", n))  # type: ignore[misc]
            for n in ("1", "16", "64")
        ),
    ),
    Part(
        "training_step.py",
        "--rounds 2",
        300,
        tuple(
            Ratio(f"training on trees, {shape}: share of the limit", lambda t, shape=shape: t[0]("of limit", shape))  # type: ignore[misc]
            for shape in ("demo", "8 x 8 (90 + 64)", "1 x 16 (1024 + 128)")
        ),
    ),
    Part(
        "agent_call.py",
        "--rounds 3",
        240,
        tuple(
            Ratio(
                f"a call of an agent, {calls} to a reply, times AgentScope alone",
                lambda t, calls=calls: t[0](OURS, calls) / t[0](LIMIT, calls),  # type: ignore[misc]
                False,
            )
            for calls in ("2", "33")
        ),
    ),
    Part(
        "gateway.py",
        "--concurrency 64 --calls 1500 --seconds 3",
        300,
        (
            Ratio(
                "calls/s through gateway and tracker, of a bare server's",
                lambda t: t[0]("calls/s", "64", "gateway + tracker") / t[0]("calls/s", "64", "bare"),
            ),
        ),
    ),
    Part(
        "tracker.py",
        "4 5",
        240,
        (Ratio("a call at the longest history, tokenized anew, times the tracker", lambda t: _last(t[1], "times")),),
    ),
    Part(
        "rollout_workers.py",
        "--workers 0 2 --rounds 2",
        400,
        (Ratio("a step of the demo with two workers, of one process's", lambda t: t[0]("step, of 0", "2"), False),),
    ),
    Part(
        "online_serving.py",
        "--concurrency 16 --calls 200 --rounds 2 --seconds 2",
        400,
        (
            Ratio(
                "calls/s with all recorded, of the gateway's, an engine that answers at once",
                lambda t: t[0]("calls/s", "16", "online") / t[0]("calls/s", "16", "gateway"),
            ),
        ),
    ),
    Part(
        "online_store.py",
        "--seconds 1",
        120,
        (Ratio("writes/s of 64 callers on SQLite, of the driver's", lambda t: t[0]("of it", "SQLite, NORMAL", "64")),),
    ),
    Part(
        "readers.py",
        "--lines 100000",
        240,
        (
            Ratio(
                "reading and dividing 100,000 tasks, times json.loads",
                lambda t: t[0]("times limit", "same, 1 % held out"),
                False,
            ),
        ),
    ),
    Part(
        "env_service.py",
        "--rounds 2 --steps 6 --instances 64",
        240,
        (Ratio("steps/s of an environment, of empty requests", lambda t: t[0]("of empty", "echo", "client")),),
    ),
    Part(
        "debug_start.py",
        "--runs 2 --only scripted",
        300,
        (
            Ratio(
                "first stop of the debugger, times the agent's imports",
                lambda t: t[0]("agent", "--model scripted"),
                False,
            ),
        ),
    ),
    Part(
        "math_judge.py",
        "--rounds 1 --checks 400 --hang-checks 50 --hanging 1 --workers 2",
        240,
        (
            Ratio(
                "formulas judged/s, times math-verify in a loop",
                lambda t: t[1]("times math-verify", "judge, 2 workers"),
            ),
        ),
    ),
)


def _last(table: Written, column: str) -> float:
    return table(column, *table.rows[-1][:1])


def run(part: Part, folder: Path) -> dict[str, float]:
    """The ratios of a part by name. Raises CalledProcessError, TimeoutExpired, or LookupError for what it has not
    shown."""
    tables, log = folder / f"{part.name}.jsonl", folder / f"{part.name}.log"
    tables.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / part.script), *part.arguments.split()]
    with log.open("wb") as output:
        subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=part.seconds,
            env={**os.environ, FILE: str(tables), "COLUMNS": "160"},
        )
    found = read_tables(tables)
    return {ratio.name: ratio.of(found) for ratio in part.ratios}


def fallen(part: Part, now: Mapping[str, float], recorded: Mapping[str, float]) -> bool:
    return any(
        ratio.name in recorded and ratio.share(now[ratio.name], recorded[ratio.name]) < WORSE for ratio in part.ratios
    )


def better(part: Part, one: Mapping[str, float], two: Mapping[str, float]) -> dict[str, float]:
    return {
        ratio.name: (max if ratio.more_is_better else min)(one[ratio.name], two[ratio.name]) for ratio in part.ratios
    }


def measure(part: Part, folder: Path, recorded: Mapping[str, float]) -> dict[str, float]:
    now = run(part, folder)
    return better(part, now, run(part, folder)) if fallen(part, now, recorded) else now


def row(ratio: Ratio, now: float, recorded: float | None) -> list[str]:
    figures = [ratio.name, f"{now:.2f}", "more" if ratio.more_is_better else "less"]
    if recorded is None:
        return [*figures, "", ""]
    share = ratio.share(now, recorded)
    change = f"{share:.2f}"
    return [*figures, f"{recorded:.2f}", f"[red]{change}, fallen[/red]" if share < WORSE else change]


def compare(parts: Sequence[Part], folder: Path, recorded_in: Path, *, record: bool) -> int:
    """Run the parts, show their ratios, and record them if asked to. The exit code."""
    console = Console(width=140)
    folder.mkdir(parents=True, exist_ok=True)
    recorded = json.loads(recorded_in.read_text(encoding="utf-8")) if recorded_in.exists() else {}
    rows, failed, found = [], False, {}
    for number, part in enumerate(parts, 1):
        console.print(f"{number} of {len(parts)}: {part.script} {part.arguments}")
        began, before = time.monotonic(), recorded.get(part.name, {})
        try:
            now = measure(part, folder, {} if record else before)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, LookupError) as error:
            console.print(f"  [red]failed[/red]: {error}; see {folder / part.name}.log", soft_wrap=True)
            failed = True
            continue
        console.print(f"  {time.monotonic() - began:.0f} s")
        found[part.name] = {name: round(value, 3) for name, value in now.items()}
        failed |= not record and fallen(part, now, before)
        rows += [row(ratio, now[ratio.name], before.get(ratio.name)) for ratio in part.ratios]
    columns = ("", "now", "better is", "recorded", "beside it")
    console.print(table_of(f"Ratios, load average {os.getloadavg()[0]:.1f}", columns, rows))
    if record:
        recorded_in.write_text(json.dumps(recorded | found, indent=2) + "\n", encoding="utf-8")
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--record", action="store_true", help=f"write what comes out into {RECORDED.name}")
    options = parser.parse_args()
    chosen = [part for part in PARTS if part.name in options.only]
    return compare(chosen, Path("runs") / "bench", RECORDED, record=options.record)


if __name__ == "__main__":
    sys.exit(main())
