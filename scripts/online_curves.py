"""The pictures of docs/online.md and docs/online_judging.md: success while it serves, three seeds, with honest users,
with 20 % wrong thumbs, with users who give no thumbs, and with one among them who flatters.

    python scripts/online_curves.py                 # all runs that are missing, one after the other, then both pictures
    python scripts/online_curves.py --draw          # pictures and tables of the runs that are there

Runs stand in `runs/online_curves`; one that is complete is not run again. Each takes a few minutes and two cores.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tutorial" / "online"))
from chart import picture, read_progress, table

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs") / "online_curves"
SEEDS = (1, 2, 3)
PICTURES = {
    "online": ([], "An agent gets better while it serves"),
    "online_noise": (["--wrong=0.2"], "The same with 20 % of the thumbs wrong"),
    "online_follow": (["--follow"], "Nobody gives a thumb: what users said next"),
    "online_flatterer": (["--follow", "--flatterer=0.1"], "The same with one who praises what is wrong"),
}
"""Names of the files in docs/images: what users do, and the title."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--exam", type=int, default=100)
    parser.add_argument("--draw", action="store_true", help="run nothing")
    given = parser.parse_args()
    for name, (users, title) in PICTURES.items():
        for seed in () if given.draw else given.seeds:
            run(RUNS / f"{name}_{seed}", users, seed, given)
        done = sorted(path.parent for path in RUNS.glob(f"{name}_[0-9]*/chart.svg"))
        runs = [read_progress(path / "progress.jsonl") for path in done]
        if runs:
            (ROOT / "docs" / "images" / f"{name}.svg").write_text(picture(runs, title), encoding="utf-8")
            print(f"{title}\n\n{table(runs)}\n")


def run(folder: Path, users: list[str], seed: int, given: argparse.Namespace) -> None:
    if (folder / "chart.svg").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(ROOT / "tutorial" / "online" / "run.py"), f"--folder={folder}", *users]
    command += [f"--seed={seed}", f"--versions={given.versions}", f"--exam={given.exam}"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
