"""Runs with dynamic sampling and a running mean, on an engine without a model; stopped at random and resumed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astune.config.load import load_config
from astune.config.schema import TrainerConfig
from astune.errors import ConfigError
from astune.monitor import read_episodes, read_metrics
from astune.monitor.metrics import MetricsLog
from astune.testing import CountingLearner
from astune.training.schedule import Schedule
from astune.types import RunReport
from tests.training.killed import Killed, raise_at

RunJob = Callable[..., RunReport]
WriteJob = Callable[..., Path]
TIMES = ("time", "throughput", "seconds", "blocked")
REFILL = ("astune.algorithm.dynamic_sampling=3", "astune.evaluation.after=false", "astune.trainer.total_steps=5")
BASELINE = (
    "astune.algorithm.advantage=running_mean",
    "astune.rollout.num_repeat=1",
    "astune.algorithm.baseline_by=topic",
    "astune.evaluation.after=false",
    "astune.trainer.total_steps=5",
)


def agent(conf: Path, name: str) -> str:
    return f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:{name}"


def timeless(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not any(part in k.split("/") for part in TIMES)} for row in rows]


def played(run: Path) -> list[str]:
    return [record.episode.episode_id for record in read_episodes(run / "episodes" / "train.jsonl")]


def test_groups_without_signal_are_replaced_by_further_tasks(write_job: WriteJob, run_job: RunJob) -> None:
    conf = write_job(tasks=9)
    run = run_job(conf, *REFILL, agent(conf, "teaches_by_task")).run_dir
    for row in timeless(run):
        further = row["dynamic_sampling/further_tasks"]
        assert row["groups/used"] + row["dynamic_sampling/missing_groups"] == 2
        assert row["groups/used"] + row["groups/no_signal"] == 2 + further
        assert row["episodes/total"] == 3 * (2 + further)
        assert row["dynamic_sampling/rounds"] <= 3
        assert row["dynamic_sampling/missing_groups"] == 0 or row["dynamic_sampling/rounds"] == 3
    assert any(row["dynamic_sampling/further_tasks"] for row in timeless(run))
    names = played(run)
    assert len(names) == len(set(names))  # no task twice in a step


def test_it_is_bounded_by_rounds_and_by_the_tasks_there_are(write_job: WriteJob, run_job: RunJob) -> None:
    conf = write_job(tasks=4)
    run = run_job(conf, *REFILL, agent(conf, "same_for_all"), "astune.algorithm.dynamic_sampling=9").run_dir
    for row in timeless(run):
        assert (row["dynamic_sampling/rounds"], row["dynamic_sampling/further_tasks"]) == (1, 2)
        assert row["dynamic_sampling/missing_groups"] == 2


def test_further_items_are_none_of_the_step_and_none_twice() -> None:
    schedule = Schedule(range(10), TrainerConfig(tasks_per_step=3), 7, "numbers")
    for step in range(6):
        found = list(schedule.further(step))
        assert sorted([*found, *schedule.at(step)]) == list(range(10))
        assert found == list(schedule.further(step))
    assert list(schedule.further(0)) != list(schedule.further(3))


@pytest.mark.fault(
    "Runs and resuming",
    "a run with dynamic sampling, or with a running mean, is killed anywhere in a step",
    "resumed, it takes the same tasks and goes on bit for bit as if never stopped",
)
@pytest.mark.parametrize(("options", "workflow"), [(REFILL, "teaches_by_task"), (BASELINE, "by_number")])
def test_a_run_that_is_killed_at_random_and_resumed_equals_one_that_never_was(
    write_job: WriteJob,
    run_job: RunJob,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    workflow: str,
) -> None:
    conf = write_job(tasks=9, topic="sums")
    options = (*options, agent(conf, workflow))
    straight = run_job(conf, *options).run_dir
    draw = random.Random(workflow)
    for attempt in range(2):
        name = f"astune.experiment_name=killed{attempt}"
        owner, place = draw.choice([(CountingLearner, "update"), (CountingLearner, "publish"), (MetricsLog, "log")])
        call = draw.randint(2, 4)

        with monkeypatch.context() as patch:
            raise_at(patch, call, owner, place)
            with pytest.raises(Killed):
                run_job(conf, *options, name)
        resumed = run_job(conf, *options, name, resume=True).run_dir
        assert timeless(resumed) == timeless(straight) and played(resumed) == played(straight)
        ends = [run / "checkpoints" / "step_000005" for run in (straight, resumed)]
        for file in ends[0].iterdir():
            assert file.read_bytes() == (ends[1] / file.name).read_bytes()
        assert (ends[0] / "advantage.json").is_file() == (workflow == "by_number")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("astune.rollout.num_repeat=1", "num_repeat: 1 attempt at each task has nothing to be compared with"),
        ("astune.algorithm.advantage=rloo astune.rollout.num_repeat=1", "every advantage of 'rloo' would be 0"),
        ("astune.algorithm.critic.gamma=0.9", "critic.gamma: only advantage 'gae' has a critic"),
        ("astune.algorithm.advantage=gae astune.algorithm.critic.value_clip=0.2", "nothing is clipped"),
        ("astune.algorithm.advantage=gae astune.algorithm.critic.warmup_updates=3", "the policy would never learn"),
        (
            "astune.algorithm.advantage=gae astune.algorithm.kl_beta=0.1 astune.algorithm.kl_in=reward",
            "astune.algorithm.kl_in: 'reward' takes the divergence off the advantages",
        ),
        ("astune.algorithm.step_norm=true", "only advantage 'step_wise_grpo' has it"),
        ("astune.algorithm.baseline_decay=0.5", "only advantage 'running_mean' has it"),
        (
            "astune.algorithm.advantage=gae astune.algorithm.dynamic_sampling=1",
            "so none is replaced; expected 0, or one",
        ),
        ("astune.algorithm.overlong_buffer=5", "5 tokens are more than astune.rollout.max_tokens = 4"),
        ("astune.algorithm.overlong_penalty=2", "nothing is overlong without astune.algorithm.overlong_buffer"),
        ("astune.algorithm.trained_agents=[]", "trained_agents: no agent would be trained"),
        (
            "astune.algorithm.agent_reward=leave_one_out astune.synchronizer.quorum=0.5",
            "agent_reward: 'leave_one_out' plays attempts again with the same weights once all of a step have ended",
        ),
        (
            "astune.algorithm.agent_reward=leave_one_out",
            "agent_reward: 'leave_one_out' plays attempts again from their seeds, and only the engine of",
        ),
        ("astune.algorithm.trained_agents=['a[12]']", "trained_agents: 'a[12]' has a bracket"),
        (
            "astune.algorithm.advantage=running_mean astune.rollout.num_repeat=1 astune.algorithm.balance=true",
            "balance: it looks at several attempts at a task",
        ),
        (
            "astune.algorithm.advantage=reinforce_pp astune.rollout.num_repeat=1 astune.trainer.tasks_per_step=1",
            "tasks_per_step: 1 attempt at 1 task in a step",
        ),
    ],
)
def test_what_cannot_work_together_is_said_before_the_run(conf: Path, overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(conf, overrides.split())
    assert message in str(caught.value)
