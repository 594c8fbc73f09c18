"""How long until the first of a million tasks, what all of them cost, and how much memory, beside `datasets`.

    .venv/bin/python benchmarks/readers.py                  # two or three minutes; --lines 100000 is shorter

A JSON Lines file of rows with a question, an answer, a level and a nested column, about 230 bytes each, in a temporary
folder. Every figure is from a process of its own; processes of one round take turns, and figures are medians of the
rounds. The clock starts after imports, that of torch too, which `datasets` makes where it streams. "us per row" is
processor time, so that a busy machine can be borne; seconds are what a clock on the wall says. The file was just
written, so it lies in the page cache for all. Memory is the peak of the process's resident set (VmHWM) over what it was
after imports; of `datasets`, which maps its files, that counts pages that the system can take back.

The limit is `json.loads` of every line and nothing else. `datasets` reads the same file with `load_dataset("json")`,
cold (an empty cache, as with a file that it has not seen) and streaming; it gives rows, not tasks: no ids, no checks.

Ends with 1 if the first task takes over a second, or streaming them all takes over 64 bytes of memory per task.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench_table import table_of
from rich.console import Console

FIRST_LIMIT = 1.0
BYTES_LIMIT = 64.0
MANY = 1_000_000
LOOKED_UP = 10_000
"""Tasks that are looked up in random order."""
WORDS = ("a", "baker", "sells", "pears", "figs", "by", "dozen", "to", "nine", "friends", "each", "week", "how", "many")
CASES = {
    "limit": "json.loads alone",
    "stream": "stream_tasks",
    "stream_gz": "same, .jsonl.gz",
    "read": "read_task_sets",
    "divided": "same, 1 % held out",
    "filtered": "same, filter",
    "datasets": "datasets, cold",
    "datasets_stream": "datasets, streaming",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case, args.file)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(Path(folder) / "train.jsonl", args.lines)
        subprocess.run(["gzip", "--keep", "--fast", path], check=True)
        size = path.stat().st_size
        rounds = [{case: run_case(case, path) for case in CASES} for _ in range(args.rounds)]
    figures = {
        case: {name: statistics.median(one[case][name] for one in rounds) for name in rounds[0][case]} for case in CASES
    }
    report(figures, args.lines, size)
    first, per_task = figures["stream"]["first"], figures["stream"]["peak_all"] * 2**20 / args.lines
    many = args.lines >= MANY  # of few lines, memory is that of the process
    return int(first > FIRST_LIMIT or (many and per_task > BYTES_LIMIT))


def write_rows(path: Path, lines: int) -> Path:
    chance = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            question = f"{number}: {' '.join(chance.choices(WORDS, k=24))}?"
            row = {"question": question, "answer": f"#### {chance.randrange(1000)}", "level": number % 5}
            file.write(json.dumps({**row, "data": {"subject": "arithmetic", "tags": ["shop", "fruit"]}}) + "\n")
    return path


def run_case(case: str, path: Path) -> dict[str, float]:
    """The figures of one case, from a process of its own with an empty cache of data sets."""
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        environment = {
            **os.environ,
            "HF_HOME": cache,
            "HF_DATASETS_OFFLINE": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        }
        command = [sys.executable, __file__, "--case", case, "--file", str(path)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    figures: dict[str, float] = json.loads(out.splitlines()[-1])
    return figures


def measure(case: str, path: Path) -> dict[str, float]:
    if case in ("read", "divided", "filtered"):
        return measure_check(case, path)
    start_case = {
        "limit": json_rows,
        "stream": streamed_tasks,
        "stream_gz": lambda path: streamed_tasks(path.with_suffix(".jsonl.gz")),
        "datasets": lambda path: dataset_rows(path, streaming=False),
        "datasets_stream": lambda path: dataset_rows(path, streaming=True),
    }[case]
    rows = start_case(path)
    before, start, worked = peak_mb(), time.perf_counter(), time.process_time()
    next(rows)
    first, peak_first = time.perf_counter() - start, peak_mb() - before
    count = 1 + sum(1 for _ in rows)
    return {
        "first": first,
        "seconds": time.perf_counter() - start,
        "per_row": (time.process_time() - worked) / count * 1e6,
        "peak_first": peak_first,
        "peak_all": peak_mb() - before,
    }


def measure_check(case: str, path: Path) -> dict[str, float]:
    from astune.task_reader.task_sets import read_task_sets

    settings: dict[str, dict[str, Any]] = {
        "divided": {"validation_fraction": 0.01},
        "filtered": {"filter": "level > 1"},
    }
    config = reader_config(path, **settings.get(case, {}))
    before, start, worked = peak_mb(), time.perf_counter(), time.process_time()
    training = read_task_sets(config).training
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    kept = resident_mb() - before
    positions = random.Random(1).choices(range(len(training)), k=LOOKED_UP)
    start = time.process_time()
    for position in positions:
        training[position]
    looked_up = (time.process_time() - start) / LOOKED_UP * 1e6
    return {
        "seconds": seconds,
        "per_row": worked / len(training.tasks) * 1e6,
        "peak_all": peak_mb() - before,
        "kept": kept,
        "looked_up": looked_up,
    }


def reader_config(path: Path, **settings: Any) -> Any:
    from astune.config.tasks import JsonlFile, JsonlReaderConfig, TaskReaderConfig

    return TaskReaderConfig(jsonl=JsonlReaderConfig(training=JsonlFile(file_path=str(path))), **settings)


def json_rows(path: Path) -> Iterator[Any]:
    with path.open("rb") as lines:
        yield from map(json.loads, lines)


def streamed_tasks(path: Path) -> Iterator[Any]:
    from astune.task_reader.task_sets import stream_tasks

    return stream_tasks(reader_config(path), "training")


def dataset_rows(path: Path, *, streaming: bool) -> Iterator[Any]:
    """An iterator that loads the data set when its first row is asked for."""
    import datasets

    if find_spec("torch"):
        import_module("torch")

    def rows() -> Iterator[Any]:
        yield from datasets.load_dataset("json", data_files=str(path), split="train", streaming=streaming)

    return rows()


def peak_mb() -> float:
    return _status("VmHWM:")


def resident_mb() -> float:
    return _status("VmRSS:")


def _status(name: str) -> float:
    """A figure of this process in MB; Linux counts the peak anew for every program, unlike `getrusage`."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def report(figures: dict[str, dict[str, float]], lines: int, size: int) -> None:
    columns = {
        "first s": ("first", ".3f"),
        "all s": ("seconds", ".1f"),
        "us per row": ("per_row", ".1f"),
        "MB, first": ("peak_first", ".0f"),
        "MB, all": ("peak_all", ".0f"),
        "MB kept": ("kept", ".0f"),
        "us looked up": ("looked_up", ".1f"),
    }
    rows = []
    limit = figures["limit"]["per_row"]
    for case, found in figures.items():
        cells = [format(found[name], form) if name in found else "" for name, form in columns.values()]
        rows.append((CASES[case], *cells, f"{found['per_row'] / limit:.1f}"))
    console = Console(width=120)
    title = f"{lines:,} lines, {size / 1e6:.0f} MB, Python {platform.python_version()}, {os.cpu_count()} cores"
    console.print(table_of(title, ("", *columns, "times limit"), rows))


if __name__ == "__main__":
    sys.exit(main())
