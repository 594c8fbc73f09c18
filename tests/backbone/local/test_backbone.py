"""Whole runs of the local backbone with the shipped model, on CPU."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.engine import LocalBackbone, load_engine
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import AstuneError, RunFolderError
from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics
from astune.monitor.run_dir import RunDir
from astune.training.engine import Engine
from astune.training.evaluation import evaluate
from astune.training.start import assemble, read_inputs
from astune.types import Generation, Policy, RunReport, Sampling

AGENT = Path(__file__).with_name("agent.py")
TIMES = ("time", "throughput", "seconds", "blocked")
SHORT = ("astune.trainer.total_steps=2", "astune.evaluation.before=false", "astune.evaluation.every=0",
         "astune.evaluation.after=false", "astune.monitor.check_invariants=true")  # fmt: skip


def write_job(folder: Path, tasks: int = 6, broken: int = 0, held_out: int = 1) -> Path:
    rows = [{"query": f"What is {n} plus {n}?", "answer": str(2 * n), "broken": n < broken} for n in range(tasks)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    held = [{"query": f"What is {n} minus 2?", "answer": str(n - 2)} for n in range(8, 8 + held_out)]
    (folder / "held.jsonl").write_text("\n".join(map(json.dumps, held)))
    config = {
        "project_name": "test",
        "experiment_name": "job",
        "runs_dir": str(folder / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": f"{AGENT}:Asker", "num_repeat": 3, "max_tokens": 8},
        "trainer": {"total_steps": 4, "tasks_per_step": 2, "learning_rate": 1e-3},
        "evaluation": {"every": 2},
        "monitor": {"progress": "off", "trackers": []},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    return folder / "job.yaml"


def run_job(conf: Path, *overrides: str, resume: bool = False) -> RunReport:
    return LocalBackbone().run(load_config(conf, overrides, resume=resume))


def timeless(report: RunReport) -> list[dict[str, Any]]:
    rows = read_metrics(report.run_dir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not any(part in k.split("/") for part in TIMES)} for row in rows]


def weights(report: RunReport, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (path,) = (report.run_dir / "checkpoints" / f"step_{step:06d}").glob("*model.safetensors")
    return load_file(path)


def first_step(report: RunReport) -> list[list[list[int]]]:
    """What was sampled in the first step: the tokens of each turn of each episode."""
    records = read_episodes(report.run_dir / "episodes" / "train.jsonl")
    return [[list(turn.output_ids) for turn in record.episode.turns] for record in records if record.step == 1]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """A run of the job as it is written, from its first step to its last."""
    return run_job(write_job(tmp_path_factory.mktemp("straight")))


def test_a_run_leaves_metrics_episodes_and_a_checkpoint(straight: RunReport) -> None:
    report = straight
    assert (report.status, report.steps) == ("completed", 4)
    rows = read_metrics(report.run_dir / "metrics.jsonl")
    trained = [row for row in rows if "reward/mean" in row]
    assert [row["step"] for row in trained] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if "eval/greedy/reward" in row] == [0, 2, 4]
    for row in trained:
        assert row["episodes/total"] == 6 and row["turns/mean"] == 2
        if "loss" in row:
            assert row["tokens/packed"] <= row["tokens/flattened"]
            assert row["kl/sampler"] < 1e-6
    episodes = list(read_episodes(report.run_dir / "episodes" / "train.jsonl"))
    assert len(episodes) == 24 and all(record.episode.reward is not None for record in episodes)
    assert weights(report, 4)


def test_a_seed_gives_the_same_run_bit_for_bit(straight: RunReport, tmp_path: Path) -> None:
    conf = write_job(tmp_path)
    other, again = run_job(conf, "astune.seed=7", *SHORT), run_job(conf)
    assert again.run_dir.name == "job-2"
    assert timeless(straight) == timeless(again)
    assert first_step(straight) == first_step(again) != first_step(other)
    a, b = weights(straight, 4), weights(again, 4)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.fault(
    "Runs and resuming", "a run is resumed", "weights and optimizer go on bit for bit as if never stopped"
)
def test_a_resumed_run_equals_one_that_was_never_stopped(straight: RunReport, tmp_path: Path) -> None:
    conf = write_job(tmp_path)
    half = run_job(conf, "astune.trainer.total_steps=2", "astune.experiment_name=half", "astune.evaluation.after=false")
    resumed = run_job(conf, "astune.experiment_name=half", resume=True)
    assert resumed.run_dir == half.run_dir
    assert [row for row in timeless(resumed) if row["step"] > 2] == [
        row for row in timeless(straight) if row["step"] > 2
    ]
    a, b = weights(straight, 4), weights(resumed, 4)
    assert all(torch.equal(a[name], b[name]) for name in a)


@dataclass
class Heard:
    """A policy that keeps what it says."""

    policy: Policy
    said: list[Generation]

    @property
    def context_length(self) -> int:
        return self.policy.context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.said.append(await self.policy.generate(prompt_ids, sampling))
        return self.said[-1]


@pytest.mark.fault(
    "Runs and resuming",
    "a run is killed between two evaluations of a step",
    "the one that is left gives, bit for bit, what it would have given",
)
def test_what_was_evaluated_before_changes_no_bit_of_an_evaluation(tmp_path: Path) -> None:
    conf = write_job(tmp_path, held_out=4)
    both, alone = [], []
    for said, evaluated in ((both, set[str]()), (alone, {"sampled"})):
        with ExitStack() as stack:

            def load(config: AstuneConfig, said: list[Generation] = said) -> Engine:
                engine = load_engine(config)
                return replace(engine, policy=Heard(engine.policy, said))

            loaded = load_config(conf)
            run = assemble(loaded, read_inputs(loaded.config.astune, stack), None, load, stack, None)
            run.evaluated = evaluated
            asyncio.run(evaluate(run))
    assert len(alone) == 8 and both[8:] == alone


def test_agents_that_ask_for_what_no_model_can_do_harm_neither_the_others_nor_the_update(tmp_path: Path) -> None:
    conf = write_job(tmp_path, tasks=2, broken=1)
    runs = [
        run_job(
            conf, f"astune.rollout.agentscope_learn_protocol={AGENT}:{name}", f"astune.experiment_name={name}", *SHORT
        )
        for name in ("Vandal", "Asker")
    ]
    rows = steps_of(runs[0])
    assert len(rows) == 2
    for row in rows:
        assert (row["stop/completed"], row.get("updates/skipped", 0)) == (6, 0)
    said = []
    for run in runs:
        records = list(read_episodes(run.run_dir / "episodes" / "train.jsonl"))
        wild = [turn for record in records for turn in record.episode.turns if turn.agent == "vandal"]
        assert all((turn.excluded, turn.temperature) == ("greedy", 0.0) for turn in wild)
        assert len(wild) == (18 if run is runs[0] else 0)
        first = [record.episode for record in records if record.step == 1 and record.episode.task.answer != "0"]
        said.append([[turn.output_ids for turn in episode.turns] for episode in first])
    assert said[0] == said[1] and len(said[0]) == 3  # the other task's agents sampled the same tokens in the first step


def steps_of(report: RunReport) -> list[dict[str, Any]]:
    """The lines of train steps; each accounts for every token."""
    rows = [row for row in read_metrics(report.run_dir / "metrics.jsonl") if "episodes/total" in row]
    for row in rows:
        assert row["tokens/sampled"] == row["tokens/trained"] + sum(row[name] for name in row if "/dropped_" in name)
    return rows


@pytest.mark.fault(
    "Agents and the engine",
    "rewards are huge (9e29)",
    "with `grpo` they are compared as others are; with `dr_grpo` the update is thrown away and counted",
)
@pytest.mark.parametrize(("advantage", "skipped"), [("grpo", 0), ("dr_grpo", 1)])
def test_huge_rewards_end_no_run(tmp_path: Path, advantage: str, skipped: int) -> None:
    options = (f"astune.rollout.agentscope_learn_protocol={AGENT}:Greedy", f"astune.algorithm.advantage={advantage}")
    report = run_job(write_job(tmp_path), *options, *SHORT)
    rows = steps_of(report)
    assert len(rows) == 2 and rows[0]["updates/skipped"] == skipped
    assert rows[0]["policy_version"] == 1 - skipped
    assert all(bool(value.isfinite().all()) for value in weights(report, 2).values())


def test_a_run_says_of_skipped_updates_that_nothing_was_trained(tmp_path: Path) -> None:
    report = run_job(write_job(tmp_path), f"astune.algorithm.advantage={AGENT}:beyond", *SHORT)
    rows = steps_of(report)
    assert [(row["updates/skipped"], row["tokens/trained"], row["policy_version"]) for row in rows] == [(1, 0, 0)] * 2
    assert all(row["tokens/dropped_skipped_update"] > 0 and "loss" not in row for row in rows)
    episodes = read_episodes(report.run_dir / "episodes" / "train.jsonl")
    assert {turn.policy_version for record in episodes for turn in record.episode.turns} == {0}


def test_evaluations_do_not_change_what_is_learned(tmp_path: Path) -> None:
    conf = write_job(tmp_path, tasks=12)
    settings = ("astune.rollout.num_repeat=4", "astune.trainer.tasks_per_step=4")
    none = [f"astune.evaluation.{when}" for when in ("before=false", "after=false", "every=0")]
    with_evaluations = run_job(conf, "astune.evaluation.every=1", *settings)
    without = run_job(conf, *none, *settings)
    assert [row.get("updates/skipped", 0) for row in steps_of(without)] == [0] * 4
    a, b = weights(with_evaluations, 4), weights(without, 4)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_that_checks_its_invariants_learns_the_same(tmp_path: Path) -> None:
    conf = write_job(tmp_path)
    checked = run_job(conf, "astune.monitor.check_invariants=true", "astune.trainer.total_steps=1")
    assert timeless(checked) == timeless(run_job(conf, "astune.trainer.total_steps=1"))


def test_several_updates_per_step(tmp_path: Path) -> None:
    report = run_job(write_job(tmp_path), "astune.trainer.updates_per_step=3", "astune.trainer.total_steps=1")
    assert report.status == "completed"


@pytest.mark.fault(
    "Input files and settings", "settings that cannot work", "an error that names the key before a run folder is made"
)
def test_a_loss_that_there_is_not_stops_before_a_run_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(AstuneError, match=r"got 'ppo_clp'\. Did you mean 'ppo_clip'\?"):
        run_job(write_job(tmp_path), "astune.algorithm.loss=ppo_clp")
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_of_an_older_version_that_is_broken_is_named(tmp_path: Path) -> None:
    conf = write_job(tmp_path)
    run = RunDir(run_job(conf, "astune.trainer.total_steps=2", "astune.evaluation.after=false").run_dir)
    newest = run.checkpoint_path(2)
    (newest / "COMPLETE").write_text("")
    (newest / "trainer_state.pt").unlink()
    with pytest.raises(
        RunFolderError, match=r"step_000002 cannot be gone on from: FileNotFoundError.*delete the folder"
    ):
        run_job(conf, resume=True)
