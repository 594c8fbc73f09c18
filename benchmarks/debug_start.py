"""How long from Enter to the first stop of `--backbone=debug --step`, and where the time goes.

    python benchmarks/debug_start.py --runs 7

A real `python -m astune run ...` on a pseudo-terminal, timed until its prompt stands there. Runs of every model take
turns with the floors: a bare `python -c pass`, `python -c "import agentscope, openai"`, and the imports that no
debugger of an AgentScope agent can do without. "first" is the first run of all; "cold" is one after the files of
Python, its packages and the checkout were dropped from the page cache. Ends with 1 if scripted, human or replay take
longer than the limit, first, cold or warm, or import torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pty
import select
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench_table import table_of
from rich.console import Console

from astune.support.resources import tutorial_dir

CHECKOUT = Path(__file__).parents[1]
CONF = tutorial_dir() / "math_agent" / "demo.yaml"
TASK = "train-0000"
PROMPT = b"(astune) "
PATIENCE = 120.0
"""Seconds after which a run that has not stopped is given up."""
LIGHT = ("scripted", "human", "replay")
"""Models that need no torch, and are held to the limit."""
FLOORS = {
    "python": "pass",
    "packages": "import agentscope, openai",
    "agent": "import agentscope.agent, agentscope.model, agentscope.tool, openai",
}
"""`import agentscope` alone loads little of it in AgentScope 2.x; the third is what an agent takes."""
STAGES = """
import json, sys, time
marks = [time.perf_counter()]
def mark(): marks.append(time.perf_counter())
from pathlib import Path
import astune.cli; mark()
import openai; mark()
from astune.config.load import load_config
import astune.backbone.debug
loaded = load_config(Path(sys.argv[1]), sys.argv[2:], backbone="debug"); mark()
from astune.training.tasks import read_tasks
read_tasks(loaded.config.astune); mark()
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.support.resources import tiny_model_dir
chat_format = ChatFormat.load(tiny_model_dir())
chat_format.encode(chat_format.render([{"role": "user", "content": "?"}])); mark()
import agentscope.agent, agentscope.model, agentscope.tool; mark()
from astune.plugins import load_plugin
load_plugin(loaded.config.astune.rollout.agentscope_learn_protocol, kind="workflow"); mark()
print(json.dumps([after - before for before, after in zip(marks, marks[1:])]))
"""
STAGE_NAMES = (
    "import of the command line",
    "import of openai",
    "import of the debugger, configuration",
    "task file, 2,000 tasks",
    "tokenizer, chat template",
    "import of AgentScope's agents",
    "workflow",
)


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        models = _models(Path(folder), arguments.workflow)
        if arguments.only:
            models = {name: model for name, model in models.items() if name in arguments.only}
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, warm: median of {arguments.runs}")
        warm = _take_turns(models, arguments.runs, Path(folder), arguments.workflow)
        cold = {name: _cold(model, Path(folder), arguments.workflow) for name, model in models.items()}
        _print_models(models, warm, cold)
        imported = {
            name: _imports(model, Path(folder), arguments.workflow) for name, model in models.items() if name in LIGHT
        }
        _print_stages(_settings(Path(folder), arguments.workflow), warm)
        _print_packages(imported)
    return _verdict(warm, cold, imported, arguments.limit)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="warm runs of each")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that scripted, human and replay may take")
    parser.add_argument("--only", nargs="*", help="these models: scripted, human, replay, tiny")
    parser.add_argument(
        "--workflow", default="workflow.py", help="file in tutorial/math_agent; AgentScope 1.x has its own"
    )
    return parser.parse_args()


def _models(folder: Path, workflow: str) -> dict[str, str]:
    """What `--model` is given. The replayed episode is one that is recorded here."""
    answers = folder / "answers.jsonl"
    call = {"function": {"name": "calculator", "arguments": {"expression": "2 + 2"}}}
    lines = [{"role": "assistant", "tool_calls": [call]}, "The answer is 4."]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    scripted = f"scripted:{answers}"
    command = _command(scripted, folder, workflow, step=False)
    subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    (log,) = folder.glob("runs/*/*/episodes/debug.jsonl")
    return {"scripted": scripted, "human": "human", "replay": f"replay:{log}", "tiny": "tiny"}


def _command(model: str, folder: Path, workflow: str, *, step: bool = True) -> list[str]:
    options = ["--conf", str(CONF), "--backbone=debug", "--model", model, *(["--step"] if step else [])]
    task = [] if model.startswith("replay:") else ["--task", TASK]
    return [sys.executable, "-m", "astune", "run", *options, *task, *_settings(folder, workflow)]


def _settings(folder: Path, workflow: str) -> list[str]:
    return [
        f"astune.runs_dir={folder / 'runs'}",
        f"astune.rollout.agentscope_learn_protocol={CONF.parent / workflow}:MathAgent",
    ]


@contextmanager
def _on_terminal(command: Sequence[str], stderr: int | None = None) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The process and the other end of its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=CHECKOUT, stdin=theirs, stdout=theirs, stderr=theirs if stderr is None else stderr, close_fds=True
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(ours: int, wanted: bytes, process: subprocess.Popen[bytes]) -> None:
    seen = b""
    until = time.monotonic() + PATIENCE
    while wanted not in seen:
        ready, _, _ = select.select([ours], [], [], max(0.0, until - time.monotonic()))
        part = _read(ours) if ready else b""
        if not part:
            raise SystemExit(f"{process.args!r}\nended or hung before {wanted!r}:\n{seen.decode()}")
        seen += part


def _read(ours: int) -> bytes:
    try:
        return os.read(ours, 65536)
    except OSError:  # the process has ended
        return b""


def _time(command: Sequence[str], wanted: bytes | None) -> float:
    """Seconds until `wanted` is on the terminal, or to the end of the process."""
    started = time.perf_counter()
    if wanted is None:
        subprocess.run(command, cwd=CHECKOUT, check=True)
        return time.perf_counter() - started
    with _on_terminal(command) as (ours, process):
        _read_until(ours, wanted, process)
        return time.perf_counter() - started


def _take_turns(models: dict[str, str], runs: int, folder: Path, workflow: str) -> dict[str, list[float]]:
    """Seconds of every run; the first of each is the first of all."""
    seconds: dict[str, list[float]] = {}
    for _ in range(runs + 1):
        for name, code in FLOORS.items():
            seconds.setdefault(name, []).append(_time([sys.executable, "-c", code], None))
        for name, model in models.items():
            seconds.setdefault(name, []).append(_time(_command(model, folder, workflow), PROMPT))
    return seconds


def _cold(model: str, folder: Path, workflow: str) -> float:
    _drop_from_page_cache()
    return _time(_command(model, folder, workflow), PROMPT)


def _drop_from_page_cache() -> None:
    """As after a start of the machine, as far as a program without rights can: nothing that another one has mapped."""
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(CHECKOUT / "astune"), str(CONF.parent)}
    for top in folders:
        for path, _, files in os.walk(top):
            for name in files:
                _drop(Path(path) / name)


def _drop(path: Path) -> None:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def _imports(model: str, folder: Path, workflow: str) -> dict[str, float]:
    """Milliseconds that the modules of each package took by themselves up to the end of the run."""
    command = _command(model, folder, workflow)
    with tempfile.TemporaryFile() as log:
        with _on_terminal([command[0], "-X", "importtime", *command[1:]], log.fileno()) as (ours, process):
            _read_until(ours, PROMPT, process)
            os.write(ours, b"quit\n")
            while _read(ours):
                pass
            process.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    packages: Counter[str] = Counter()
    for line in lines:
        parts = line.removeprefix("import time:").split("|")
        if line.startswith("import time:") and parts[0].strip().isdigit():
            packages[parts[2].strip().partition(".")[0]] += int(parts[0])
    assert packages["astune"], "no imports were seen"
    return {name: micro / 1000 for name, micro in packages.items()}


def _print_models(models: dict[str, str], warm: dict[str, list[float]], cold: dict[str, float]) -> None:
    """The last two columns are how many times a floor each takes: medians of the ratio of neighbours."""
    rows = []
    for name, code in FLOORS.items():
        first, *others = warm[name]
        rows.append([f"python -c '{code}'", f"{first:.2f}", "", f"{statistics.median(others):.2f}", "", ""])
    for name in models:
        first, *others = warm[name]
        times = [
            statistics.median(a / b for a, b in zip(others, warm[floor][1:], strict=True))
            for floor in ("packages", "agent")
        ]
        seconds = (first, cold[name], statistics.median(others))
        rows.append([f"--model {name}", *(f"{each:.2f}" for each in seconds), *(f"{each:.2f}x" for each in times)])
    columns = ("Enter to the first stop", "first", "cold", "warm", "packages", "agent")
    Console(width=140).print(table_of("Seconds", columns, rows))


def _print_stages(settings: Sequence[str], warm: dict[str, list[float]]) -> None:
    """Parts of a warm start with a scripted model, each measured in a process of its own three times."""
    command = [sys.executable, "-c", STAGES, str(CONF), *settings]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True, cwd=CHECKOUT).stdout) for _ in range(3)]
    stages = {name: statistics.median(run[at] for run in runs) for at, name in enumerate(STAGE_NAMES)}
    stages = {"start of Python": statistics.median(warm["python"][1:]), **stages}
    print("\nwhere a warm start goes, s")
    for name, value in stages.items():
        print(f"  {name:<38}{value:8.2f}")
    if "scripted" in warm:
        print(
            f"  {'the rest, up to the prompt':<38}{statistics.median(warm['scripted'][1:]) - sum(stages.values()):8.2f}"
        )


def _print_packages(imported: dict[str, dict[str, float]]) -> None:
    for name, packages in imported.items():
        largest = sorted(packages.items(), key=lambda entry: -entry[1])[:12]
        shown = ", ".join(f"{package} {milliseconds:.0f}" for package, milliseconds in largest)
        print(f"\nimports with --model {name}, ms of their own: {shown}")


def _verdict(
    warm: dict[str, list[float]], cold: dict[str, float], imported: dict[str, dict[str, float]], limit: float
) -> int:
    bad = [f"--model {name} imports torch" for name, packages in imported.items() if "torch" in packages]
    for name in imported:
        slowest = max(statistics.median(warm[name][1:]), warm[name][0], cold[name])
        if slowest > limit:
            bad.append(f"--model {name} takes {slowest:.1f} s, more than {limit:g}")
    print("\n" + ("\n".join(bad) or f"under {limit:g} s, first, cold and warm, without torch: {', '.join(imported)}"))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
