"""A run on verl whose training worker, server or driver is killed (SIGKILL) at random moments, and gone on with until
it is done. Nothing may be lost or stand there twice; tokens, figures and weights are compared with those of a run that
was never stopped. A kill takes a minute or two, as every start of verl does."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from safetensors.numpy import load_file

from astune.monitor.episodes import EpisodeRecord, read_episodes
from astune.monitor.metrics import read_metrics
from astune.support.resources import tiny_model_dir
from tests.attack.found import Found
from tests.attack.kills import ROOT, Job, write_job

PYTHON = ROOT / ".venv-verl" / "bin" / "python"
VICTIMS = {"training worker": "ray::AstuneWorker", "server": "ray::CpuServer", "driver": ""}
"""How the title of each process begins that Ray gave it."""
STEPS = 24
SECONDS = 900.0
"""The longest that one start, or one end, of the run may take."""
APART = 0.01
"""How far weights may be from those of a run that was never stopped, beside how far that has moved them."""
SETTINGS = ("--backbone=verl", "verl.trainer.n_gpus_per_node=2", "astune.monitor.trackers=[]")


class VerlJob(Job):
    """A run on verl under one name, with two training workers and two servers, and what of it was killed."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        launcher, conf = str(ROOT / "launcher.py"), str(folder / "job.yaml")
        self._command = [str(PYTHON), launcher, "--conf", conf, *SETTINGS, f"astune.experiment_name={name}"]

    def to_its_end(self) -> int:
        return self.start().wait(SECONDS)

    def records(self) -> list[EpisodeRecord]:
        return [record for path in sorted((self.dir / "episodes").glob("*.jsonl")) for record in read_episodes(path)]

    def told_since(self, place: int) -> str:
        """What the run has printed after so many bytes, in one line."""
        return " ".join(self.log.read_bytes()[place:].decode(errors="replace").split())


def attack(kills: int = 30, seed: int = 0, steps: int = STEPS) -> Iterator[Found]:
    """`kills` are shared out evenly over the victims."""
    if not PYTHON.exists():
        yield Found("verl: kills", None, "no .venv-verl; `make test-verl` builds it")
        return
    with tempfile.TemporaryDirectory() as name:
        folder, draw = Path(name), random.Random(seed)
        write_job(folder, steps)
        straight = VerlJob(folder, "straight")
        began = time.monotonic()
        if straight.to_its_end() != 0:
            yield Found("verl: the run that is not stopped", False, straight.log.read_text()[-300:])
            return
        lasts = time.monotonic() - began
        done, runs = 0, 0
        while done < kills:
            job = VerlJob(folder, f"killed{runs}")
            runs += 1
            while done < kills:
                victim = list(VICTIMS)[done % len(VICTIMS)]
                if (found := _kill(job, victim, draw, lasts)) is None:
                    break
                done += 1
                yield found._replace(row=f"verl: kill {done} of {kills}: {victim}")
            code = job.to_its_end()
            yield Found(f"verl: run {runs} comes to its end", code == 0, f"exit code {code}: {job.last_line()}")
            if code != 0:
                return
            yield _nothing_lost(job, straight)._replace(row=f"verl: run {runs}: nothing lost, nothing twice")
            yield _alike(job, straight)._replace(row=f"verl: run {runs}: as if never stopped")


def _kill(job: VerlJob, victim: str, draw: random.Random, lasts: float) -> Found | None:
    """Start the run and kill one process of it: one time in four while it starts, else soon after it has recorded
    another step, while that is evaluated or saved, or the next is played or trained. None if it was done before."""
    before, printed = job.steps(), job.log.stat().st_size if job.log.exists() else 0
    process = job.start()
    if draw.random() < 0.25:
        _until(process, lambda: bool(_family(process.pid, VICTIMS[victim])))
        time.sleep(draw.uniform(0.0, lasts / 3))
    else:
        _until(process, lambda: job.steps() > before)
        time.sleep(draw.uniform(0.0, 4.0))
    place = job.steps()
    family = [] if process.poll() is not None else _family(process.pid)
    chosen = [child for child in family if victim != "driver" and _title(child).startswith(VICTIMS[victim])]
    if process.poll() is not None or (victim != "driver" and not chosen):
        process.wait(SECONDS)
        return None
    (draw.choice(chosen) if chosen else psutil.Process(process.pid)).kill()
    began = time.monotonic()
    code = process.wait(SECONDS)
    took = time.monotonic() - began
    if code == 0:  # nothing was left to do
        return None
    _, alive = psutil.wait_procs(family, timeout=SECONDS)
    told = job.told_since(printed)
    names = [f"{victim} 0 died", f"{victim} 1 died", f"class_name: {VICTIMS[victim].removeprefix('ray::')}"]
    named = victim == "driver" or any(name in told for name in names)  # while it starts by Ray's name alone
    passed = code == (-9 if victim == "driver" else 1) and named and "Traceback" not in told and not alive
    left = f", left behind: {', '.join(sorted({child.name() for child in alive}))}" if alive else ""
    saying = "" if named and passed else f", said {told[-600:]}"
    return Found("", passed, f"after {place} steps, exit code {code} in {took:.0f} s{left}{saying}")


def _until(process: subprocess.Popen[bytes], come: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while process.poll() is None and not come() and time.monotonic() < until:
        time.sleep(0.1)


def _family(pid: int, title: str = "") -> list[psutil.Process]:
    """The processes of a run whose titles begin so. Ray's agents look once a minute whether they are still needed, and
    hold nothing."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if (name := _title(child)).startswith(title) and not name.endswith("Agent")]


def _title(process: psutil.Process) -> str:
    """As Ray sets it. Empty for one that is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _nothing_lost(job: VerlJob, straight: VerlJob) -> Found:
    """The same steps, evaluations and episodes, each once."""
    wrong = []
    rows = [
        [(row["step"], "time/step" in row) for row in read_metrics(each.dir / "metrics.jsonl")]
        for each in (job, straight)
    ]
    if rows[0] != rows[1]:
        wrong.append(f"rows of the metrics are {rows[0]}, expected {rows[1]}")
    played = [
        Counter((record.phase, record.step, record.episode.episode_id) for record in each.records())
        for each in (job, straight)
    ]
    if played[0] != played[1]:
        wrong.append(f"episodes: {(played[0] - played[1]) + (played[1] - played[0])}")
    return Found("", not wrong, "; ".join(wrong) or f"{len(rows[0])} rows of figures, {played[0].total()} episodes")


def _alike(job: VerlJob, straight: VerlJob) -> Found:
    """Tokens that are the same, and weights that are as near as two runs of verl are."""
    tokens = [
        {
            (record.phase, record.step, record.episode.episode_id): [
                tuple(turn.output_ids) for turn in record.episode.turns
            ]
            for record in each.records()
        }
        for each in (job, straight)
    ]
    same = sum(tokens[0].get(key) == value for key, value in tokens[1].items())
    folders = [max((each.dir / "checkpoints").glob("step_*")) for each in (job, straight)]
    one, two, begun = (load_file(folder / "model.safetensors") for folder in (*folders, tiny_model_dir()))
    moved = sum(float(abs(two[name] - begun[name]).sum()) for name in two)
    apart = sum(float(abs(one[name] - two[name]).sum()) for name in two) / moved
    told = f"{same} of {len(tokens[1])} episodes have the same tokens, weights moved {100 * apart:.2g} % apart"
    return Found("", same == len(tokens[1]) and apart < APART, told)
