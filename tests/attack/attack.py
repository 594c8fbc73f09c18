"""`make attack`: everything that may go wrong, made to go wrong, and a table of what happened.

    python -m tests.attack.attack                      all of it, with five minutes of load
    python -m tests.attack.attack --minutes 1
    python -m tests.attack.attack --only kills doors

First the tests that prove the rows of docs/reliability.md, in every environment that is there; then the long form, in
which chance has a part: kills, families (each killed twenty times), verl (each kind of its processes killed ten times),
faults, doors and load, online training under kills and under load, and commands in the sandbox. The exit code is 1
where a row fails. Nothing but addresses of this machine is called; everything has an end in count or in time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from astune.support.visible import tell, visible
from docs.write_reliability import Row, rows
from tests.attack import (
    doors,
    hostile,
    kills,
    kills_of_families,
    kills_of_verl,
    load,
    online,
    online_outages,
    sandboxes,
)
from tests.attack.found import Found

ROOT = Path(__file__).resolve().parents[2]
SUITES = {
    ".venv": ("tests",),
    ".venv-as1": ("tests/agents", "tests/gateway", "tests/workflow"),
    ".venv-clients": ("tests/clients",),
    ".venv-trinity": ("tests/trinity", "tests/tinker"),
    ".venv-verl": ("tests/verl",),
}
"""The environments that have what some tests need, and where those are. The first is the one that runs this."""


def proven() -> Iterator[Found]:
    """Each row of docs/reliability.md: passed if one of its tests passed somewhere and none failed anywhere."""
    matrix = rows()
    files = sorted({file for row in matrix for file, _ in row.tests})
    outcomes: dict[tuple[str, str], set[str]] = {}
    for environment, folders in SUITES.items():
        python = Path(sys.executable) if environment == ".venv" else ROOT / environment / "bin" / "python"
        chosen = [file for file in files if file.startswith(tuple(f"{folder}/" for folder in folders))]
        if python.exists() and chosen:
            for test, outcome in _outcomes(python, chosen):
                outcomes.setdefault(test, set()).add(outcome)
    for row in matrix:
        yield _verdict(row, outcomes)


def _verdict(row: Row, outcomes: dict[tuple[str, str], set[str]]) -> Found:
    of_row = [outcomes.get(test, set()) for test in row.tests]
    failed = [name for (_, name), seen in zip(row.tests, of_row, strict=True) if "failed" in seen]
    missed = [name for (_, name), seen in zip(row.tests, of_row, strict=True) if not seen & {"passed", "failed"}]
    passed = False if failed else None if missed else True
    told = f"failed: {', '.join(failed)}" if failed else f"not run: {', '.join(missed)}" if missed else row.happens
    return Found(f"{row.area}: {row.wrong}", passed, told)


def _outcomes(python: Path, files: list[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """((file, function), outcome) of each test that the marks stand on."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [str(python), "-m", "pytest", "-q", "-m", "fault", f"--junitxml={report.name}", *files]
        stubs = ROOT / "tests" / "trinity" / "stubs"  # stands in for vLLM where Trinity is
        path = f"{ROOT}:{stubs}" if "trinity" in str(python) else str(ROOT)
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False)
        for case in ElementTree.parse(report.name).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            file = case.attrib["classname"].replace(".", "/") + ".py"
            yield (file, case.attrib["name"].partition("[")[0]), outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = (
        "tests",
        "kills",
        "families",
        "verl",
        "faults",
        "doors",
        "load",
        "online_kills",
        "online_outages",
        "online_load",
        "sandboxes",
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the load lasts")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of kills and load; shown at the end")
    options = parser.parse_args()
    run: dict[str, Callable[[], Iterator[Found]]] = {
        "tests": proven,
        "kills": lambda: kills.attack(options.kills, seed=options.seed),
        "families": lambda: kills_of_families.attack(seed=options.seed),
        "verl": lambda: kills_of_verl.attack(seed=options.seed),
        "faults": hostile.attack,
        "doors": doors.attack,
        "load": lambda: load.attack(60 * options.minutes, seed=options.seed),
        "online_kills": lambda: online.attack_by_kills(seed=options.seed),
        "online_outages": online_outages.attack,
        "sandboxes": lambda: chain(sandboxes.attack(), sandboxes.endure(120 * options.minutes)),
        "online_load": lambda: online.attack_by_load(60 * options.minutes, seed=options.seed),
    }
    found = []
    for part in options.only:
        for row in run[part]():
            tell(f"{_mark(row)} {row.row} | {row.told}", flush=True)
            found.append(row)
    return show(found, options.seed)


def _mark(row: Found) -> str:
    return {True: "pass", False: "FAIL", None: "----"}[row.passed]


def show(found: list[Found], seed: int) -> int:
    """The whole table; returns the exit code."""
    table = Table("", "row", "what happened", title="make attack", title_justify="left")
    for row in found:
        table.add_row(_mark(row), escape(visible(row.row)), escape(visible(row.told)))
    Console(width=160).print(table)
    failed = [row.row for row in found if row.passed is False]
    skipped = sum(row.passed is None for row in found)
    print(f"{len(found)} rows: {len(failed)} failed, {skipped} not run; seed {seed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
