"""Show that the tests notice faults: sixty of them, planted one at a time.

    python -m scripts.planted_faults                        # all; some minutes
    python -m scripts.planted_faults --only losses          # an area, or a part of what a fault is called

Each fault is one line of `faults.py`, written into a copy of the project, where the tests that have to notice it run
until the first one fails. Before that they run once without any fault. Exit code 1 if a fault is not caught, 2 where
nothing can be shown: a fault that has no place in the code any more, or a test that fails without one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from scripts.planted_faults.copies import LIBRARIES, PROCESSES, ROOT, copy_project, plant, run_tests
from scripts.planted_faults.faults import FAULTS, Fault

TOLD = {"passed": "not caught", "failed": "caught"}


def find_misplaced(faults: Sequence[Fault]) -> list[str]:
    """Find the faults whose `old` does not stand exactly once in their file, and those without tests."""
    found = []
    for fault in faults:
        path = ROOT / fault.file
        times = path.read_text(encoding="utf-8").count(fault.old) if path.is_file() else 0
        if times != 1:
            found.append(f"{fault.what}: {fault.old!r} stands {times} times in {fault.file}, expected once")
        found += [
            f"{fault.what}: there is no {name}" for name in fault.tests if not (ROOT / name.partition("::")[0]).exists()
        ]
    return found


def try_fault(fault: Fault, projects: Queue[Path]) -> tuple[str, str]:
    """Tell what the tests make of a fault, and what shows it: "caught" and the test that failed, "not caught", or why
    nobody knows, "hangs" or "broken", and what was printed last."""
    project = projects.get()
    try:
        with plant(fault, project):
            found, printed = run_tests(project, fault.tests)
    finally:
        projects.put(project)
    if found == "failed":
        printed = " ".join(re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE))
    return TOLD.get(found, found), printed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="an area, or a part of what faults are called")
    parser.add_argument("--side-by-side", type=int, default=2, help="how many faults at a time, each in a copy")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    PROCESSES.set_forkserver_preload(list(LIBRARIES))
    chosen = [
        fault
        for area, faults in FAULTS.items()
        for fault in faults
        if options.only in area or options.only in fault.what
    ]
    if not chosen or (wrong := find_misplaced(chosen)):
        print("\n".join(wrong) if chosen else f"no fault is called {options.only!r}")
        return 2
    with tempfile.TemporaryDirectory(prefix="planted-") as folder, ThreadPoolExecutor(options.side_by_side) as pool:
        projects: Queue[Path] = Queue()
        for number in range(options.side_by_side):
            projects.put(copy_project(Path(folder, str(number))))
        tests = sorted({name for fault in chosen for name in fault.tests})
        print(f"without a fault: {len(tests)} test files and folders", flush=True)
        found, printed = run_tests(Path(folder, "0"), tests)
        if found != "passed":
            print(f"without a fault they are {found}:\n{printed}")
            return 2
        missed = 0
        outcomes = pool.map(lambda fault: try_fault(fault, projects), chosen)
        for number, (fault, (said, shown)) in enumerate(zip(chosen, outcomes, strict=True), start=1):
            missed += said != "caught"
            place = f"{fault.file.removeprefix('astune/')}: {fault.what}"
            print(f"[{number:2}/{len(chosen)}] {said:10} {place}\n{' ' * 8}{shown}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
