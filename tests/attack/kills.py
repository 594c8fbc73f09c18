"""A run killed at random moments and gone on with, until it is done: its weights, figures and episodes must be those of
a run that was never stopped, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astune.monitor.metrics import read_metrics
from tests.attack.found import Found

ROOT = Path(__file__).resolve().parents[2]
TIMES = {"time", "throughput", "seconds", "blocked"}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SECONDS = 240.0
"""The longest that one start of the run may take."""

AGENT = """
from astune import WorkflowOutput

async def asker(task, tuner):
    client = tuner.openai_client()
    messages = [{"role": "user", "content": task.query}]
    reply = await client.chat.completions.create(model="policy", messages=messages)
    text = reply.choices[0].message.content or ""
    return WorkflowOutput(answer=text, reward=sum(map(str.isdigit, text)) / max(len(text), 1))

async def opponents(task, tuner):
    digits = {}
    for agent in ("wolf", "villager", "elder"):
        client = tuner.openai_client(agent)
        messages = [{"role": "user", "content": f"{task.query} {agent}"}]
        reply = await client.chat.completions.create(model="policy", messages=messages)
        digits[agent] = sum(map(str.isdigit, reply.choices[0].message.content or ""))
    for agent, count in digits.items():
        tuner.reward(agent, count - max(digits.values()))
    return WorkflowOutput(answer="", reward=float(digits["wolf"] > digits["elder"]))

async def right_by_halves(task, tuner):
    output = await asker(task, tuner)
    return WorkflowOutput(answer=output.answer, reward=float(len(output.answer) % 2))
"""


def write_job(folder: Path, steps: int) -> None:
    (folder / "agent.py").write_text(AGENT)
    for name, numbers in (("train", range(8)), ("held", range(90, 92))):
        rows = [json.dumps({"query": f"What is {n} plus {n}?", "answer": str(2 * n)}) for n in numbers]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    config = {
        "project_name": "attack",
        "runs_dir": str(folder / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": "agent.py:asker", "num_repeat": 4, "max_tokens": 8},
        "trainer": {"total_steps": steps, "tasks_per_step": 2, "learning_rate": 1e-3, "save_every": 1},
        "evaluation": {"every": 2},
        "monitor": {"progress": "plain"},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))


class Job:
    """A run under one name, started as often as need be."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.dir = folder / "runs" / "attack" / name
        self._command = [sys.executable, str(ROOT / "launcher.py"), "--conf", str(folder / "job.yaml")]
        self._command.append(f"astune.experiment_name={name}")
        self.log = folder / f"{name}.log"

    def start(self) -> subprocess.Popen[bytes]:
        """A new run, or the one that a checkpoint was saved of."""
        more = self.going_on()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as log:
            return subprocess.Popen([*self._command, *more], stdout=log, stderr=log, env=environment)

    def going_on(self) -> list[str]:
        """What the command has to say so that a new run begins, or the one goes on that a checkpoint was saved of."""
        saved = list((self.dir / "checkpoints").glob("*/COMPLETE"))
        if not saved and self.dir.exists():  # killed before its first checkpoint: there is nothing to go on from
            self.dir.rename(self.dir.with_name(f"{self.dir.name}-killed-{time.monotonic_ns()}"))
        return ["--resume"] if saved else []

    def steps(self) -> int:
        """How many steps were recorded, a line that is being written aside."""
        path = self.dir / "metrics.jsonl"
        return sum("time/step" in row for row in read_metrics(path)) if path.exists() else 0

    def result(self) -> dict[str, Any]:
        """All that must be equal in two runs of one seed."""
        rows = read_metrics(self.dir / "metrics.jsonl")
        metrics = [{k: v for k, v in row.items() if not TIMES & set(k.split("/"))} for row in rows]
        lines = [
            json.loads(line)
            for path in sorted((self.dir / "episodes").glob("*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]
        kept = [path.parent for path in sorted((self.dir / "checkpoints").glob("step_*/COMPLETE"))]
        files = {
            f"{path.name}/{file.relative_to(path)}": _digest(file)
            for path in kept
            for file in path.rglob("*")
            if file.is_file() and file.name != "COMPLETE"  # which has the checksums of the others
        }
        episodes = sorted(json.dumps(_timeless(line), sort_keys=True) for line in lines)
        return {"metrics": metrics, "episodes": episodes, "checkpoints": files}

    def last_line(self) -> str:
        return self.log.read_text().strip().splitlines()[-1][:150]


def _digest(file: Path) -> str:
    """Of a file's bytes; of safetensors, which write their header in any order, of what stands in it."""
    data = file.read_bytes()
    if file.suffix == ".safetensors":
        end = 8 + int.from_bytes(data[:8], "little")
        data = json.dumps(json.loads(data[8:end]), sort_keys=True).encode() + data[end:]
    return hashlib.sha256(data).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if not TIMES & set(key.split("/"))}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def attack(kills: int = 8, steps: int = 6, seed: int = 0) -> Iterator[Found]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_job(folder, steps)
        straight, killed = Job(folder, "straight"), Job(folder, "killed")
        if straight.start().wait(SECONDS) != 0:
            yield Found("kills: the run that is not stopped", False, straight.log.read_text()[-300:])
            return
        draw = random.Random(seed)
        for number in range(kills):
            yield _kill(killed, SIGNALS[number % len(SIGNALS)], draw, number, steps)
            if killed.steps() == steps:
                break
        code = killed.start().wait(SECONDS)
        yield Found("kills: the run comes to its end", code == 0, f"exit code {code}: {killed.last_line()}")
        expected, got = straight.result(), killed.result()
        for part in expected:
            yield Found(
                f"kills: {part} as if never stopped", expected[part] == got[part], difference(expected, got, part)
            )


def _kill(job: Job, sign: signal.Signals, draw: random.Random, number: int, steps: int) -> Found:
    """Starts the run and stops it with `sign` soon after it has recorded a random number of further steps, or while it
    starts. SIGKILL may leave anything; after the others the process ends by itself."""
    wanted = job.steps() + draw.choice((0, 1, 1, 2))
    wait = draw.uniform(0.0, 8.0 if wanted == job.steps() else 0.5)
    process = job.start()
    end = time.monotonic() + SECONDS
    while job.steps() < wanted and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    try:
        code = process.wait(wait)
    except subprocess.TimeoutExpired:
        process.send_signal(sign)
        code = process.wait(SECONDS)
    told = f"{job.steps()} of {steps} steps recorded, exit code {code}"
    passed = code in {0, -sign, 130, 128 + sign} and "Traceback" not in job.log.read_text()
    return Found(f"kills: {number + 1}: {sign.name}", passed, told)


def difference(expected: dict[str, Any], got: dict[str, Any], part: str) -> str:
    if expected[part] == got[part]:
        return ""
    if part not in got:
        return "missing"
    if isinstance(expected[part], dict):
        names = {name for name in {**expected[part], **got[part]} if expected[part].get(name) != got[part].get(name)}
        return f"these differ: {', '.join(sorted(names))}"
    other = [pair for pair in zip(expected[part], got[part], strict=False) if pair[0] != pair[1]]
    one, two = (json.loads(each) if isinstance(each, str) else each for each in other[0]) if other else ({}, {})
    named = one.get("episode_id", "") if isinstance(one, dict) else ""
    lines = f"{len(expected[part])} and {len(got[part])} lines, {len(other)} differ"
    return f"{lines}: the first, {named}, at {str(_first(one, two))[:200]}"


def _first(one: Any, two: Any, path: str = "") -> str:
    """Where two values differ first, and how."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        pairs = [(f"{path}/{key}", one[key], two[key]) for key in one]
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = [(f"{path}/{number}", *pair) for number, pair in enumerate(zip(one, two, strict=True))]
    else:
        return f"{path}: {one!r} and {two!r}"
    return next((_first(first, second, at) for at, first, second in pairs if first != second), path)
