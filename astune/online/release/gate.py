"""The gate: both versions play held-out tasks before a user meets the challenger.

A child process plays (`astune online gate`), so the release holds no model. What it has played it keeps, in
`<folder>/releases/<number>/`, for `astune view` and `astune eval --compare`; started again it goes on.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from astune.config.rules.beside import has_held_out
from astune.config.schema import Config
from astune.errors import AstuneError
from astune.online.store.releases import Release
from astune.support.http.child_server import child_environment, describe_end, pipe
from astune.support.statistics import holm
from astune.training.comparison import compare
from astune.training.standalone import read_played

SKIPPED = "no held-out tasks: skipped"
CHAMPION, CHALLENGER = "champion", "challenger"
LOG = "gate.log"
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class GateResult:
    """`lines` say what was compared."""

    verdict: Literal["passed", "worse", "unknown"]
    lines: Sequence[str]


class PlayGate(Protocol):
    """Play the gate of a release, or say for which reason it could not be played."""

    def __call__(self, release: Release) -> GateResult: ...


def has_gate(config: Config) -> bool:
    """True if the configuration has held-out tasks and the gate wants some."""
    return config.astune.online.release.gate_tasks > 0 and has_held_out(config.astune)


def gate_folder(folder: Path, release: int) -> Path:
    return folder / "releases" / f"{release:04d}"


class ChildGate:
    """Plays in a child process, with the command line of this role."""

    def __init__(self, arguments: Sequence[str], folder: Path, alpha: float) -> None:
        self._arguments, self._folder, self._alpha = arguments, folder, alpha

    def __call__(self, release: Release) -> GateResult:
        folder = gate_folder(self._folder, release.number)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / LOG
        versions = [f"v{release.champion}", f"v{release.challenger}"]
        command = [sys.executable, "-m", "astune.cli.child", "online", "gate", *versions, "--out", str(folder)]
        with log.open("a") as file:
            process = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                text=True,
                env=child_environment(),
                start_new_session=True,
            )
        try:
            code = process.wait()
        finally:
            _end(process)
        if code:
            return GateResult("unknown", [describe_end("the held-out tasks could not be played", process, log)])
        return judge_gate(folder, self._alpha)


def _end(process: subprocess.Popen[str]) -> None:
    pipe(process.stdin).close()  # tells it to end
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def judge_gate(folder: Path, alpha: float) -> GateResult:
    """Compare what both have played, task by task: success where the judge knows it, else the reward. Worse is what the
    paired test (McNemar's, of single attempts at success) says with less than `alpha`, over all evaluations."""
    try:
        found = compare(read_played(folder / CHAMPION), read_played(folder / CHALLENGER))
    except AstuneError as error:
        return GateResult("unknown", [str(error)])
    known = {each.evaluation for each in found if each.figure == "success"}
    chosen = [each for each in found if each.figure == ("success" if each.evaluation in known else "reward")]
    if not chosen:
        return GateResult("unknown", ["nothing that was played could be judged"])
    lines, worse = [], False
    for each, p in zip(chosen, holm([each.test.p for each in chosen]), strict=True):
        lines.append(
            f"{each.evaluation}: {each.figure} {each.second.mean:.3f} against {each.first.mean:.3f} on "
            f"{each.difference.n} tasks, p {p:.2g}"
        )
        worse = worse or (p < alpha and each.difference.mean < 0.0)
    return GateResult("worse" if worse else "passed", lines)
