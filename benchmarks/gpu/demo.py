"""Twelve steps of the demo: an AgentScope agent that has to get better at tasks it never saw."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from gpu.job import CheckFailed, Job

from astune.cli import main
from astune.monitor.metrics import read_metrics

TUTORIAL = Path(__file__).parents[2] / "tutorial/math_agent"
RISE = 0.15
SAID = ("success/mean", "kl/sampler", "grad_norm", "time/rollout", "time/train")


def run(job: Job, dtype: str = "float32", backbone: str = "local") -> None:
    steps = 2 if job.tiny else 12
    with TemporaryDirectory() as folder:
        overrides = {
            "runs_dir": folder,
            "experiment_name": "run",
            "model.device": str(job.device),
            "model.dtype": dtype,
            "backbone": backbone,
            "trainer.total_steps": steps,
            "task_reader.max_validation_tasks": 4 if job.tiny else 60,
            "evaluation.decoding": "[greedy]",
            "evaluation.every": 0,
            "monitor.progress": "'off'",
        }
        if job.tiny:
            overrides |= {"trainer.tasks_per_step": 2, "rollout.num_repeat": 4}
        code = main(
            ["--conf", str(TUTORIAL / "demo.yaml"), *(f"astune.{key}={value}" for key, value in overrides.items())]
        )
        rows = read_metrics(Path(folder) / "math_agent/run/metrics.jsonl")
    for row in rows:
        if "success/mean" in row:
            job.row("", {"step": row["step"]} | {name: float(row[name]) for name in SAID if name in row})
    success = [float(row["success/mean"]) for row in rows if "success/mean" in row]
    held_out = [float(row["eval/greedy/success"]) for row in rows if "eval/greedy/success" in row]
    job.fact("held-out tasks solved before and after", " and ".join(f"{share:.0%}" for share in held_out))
    if code or len(success) != steps or len(held_out) != 2:
        raise CheckFailed(f"the demo ended with {code} after {len(success)} steps and {len(held_out)} evaluations")
    if not job.tiny and (mean(success[-4:]) < mean(success[:4]) + RISE or held_out[1] < held_out[0] + RISE):
        raise CheckFailed(f"the agent did not get better by {RISE}: {success}, held out {held_out}")
