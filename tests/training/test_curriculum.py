"""A curriculum draws tasks by what there is to learn: the draw alone, and runs that are stopped, ahead, or refilled."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm.curriculum import POOLS, record_group
from astune.cli import main
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, RunFolderError
from astune.monitor.metrics import MetricsLog
from astune.task_reader.task_sets import read_task_sets
from astune.testing import CountingLearner
from astune.training.schedule import Curriculum
from astune.types import Episode, Group, RunReport, StopReason, Task, Verdict
from astune.viewer import write_report
from tests.training.killed import Killed, raise_at
from tests.training.test_batch_rules import agent, played, timeless

RunJob = Callable[..., RunReport]
WriteJob = Callable[..., Path]
ATTEMPTS = 4


def group_of(task: Task, rewards: list[float | None]) -> Group:
    judged = [None if reward is None else Verdict(reward) for reward in rewards]
    return Group(
        task, tuple(Episode(f"{n}", task, (), (), StopReason.COMPLETED, verdict=v) for n, v in enumerate(judged))
    )


def curriculum(
    tasks: int, per_step: int, seed: int = 1, ahead: int = 0, shuffle: bool = True, **keys: Any
) -> Curriculum:
    config = AstuneConfig.model_validate(
        {
            "seed": seed,
            "task_reader": {"shuffle": shuffle},
            "synchronizer": {"max_staleness": ahead},
            "trainer": {"tasks_per_step": per_step, "curriculum": {"enabled": True, **keys}},
        }
    )
    return Curriculum([Task(str(number), "?") for number in range(tasks)], config)


def play(schedule: Curriculum, step: int, chances: list[float], seed: int = 0) -> dict[str, float]:
    """Play a step: task n is right with chance `chances[n]`, by a draw of its own."""
    groups = []
    for task in schedule.tasks(step):
        draw = random.Random(f"{seed}/{step}/{task.task_id}")
        chance = chances[int(task.task_id)]
        groups.append(group_of(task, [float(draw.random() < chance) for _ in range(ATTEMPTS)]))
    return schedule.observe(step, groups)


sizes = st.tuples(st.integers(1, 30), st.integers(1, 8)).map(lambda pair: (max(pair), min(pair)))


@given(
    sizes,
    st.integers(0, 9),
    st.integers(0, 3),
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=30),
    st.sampled_from([0.3, 1.0]),
)
def test_each_task_is_met_none_twice_in_a_step_and_each_again_within_a_bound(
    size: tuple[int, int], seed: int, ahead: int, chances: list[float], new: float
) -> None:
    tasks, per_step = size
    schedule = curriculum(tasks, per_step, seed, ahead, new=new, look_again=0.25)
    first = -(-tasks // per_step) if new == 1.0 else int(tasks / (new * per_step)) + 2
    bound = int(tasks / (0.25 * per_step)) + 2 + ahead
    met: dict[str, list[int]] = {str(number): [-1] for number in range(tasks)}
    total = first + 2 * bound
    for step in range(total):
        names = [task.task_id for task in schedule.tasks(step)]
        assert len(names) == len(set(names)) == per_step
        for name in names:
            met[name].append(step)
        figures = play(schedule, step, chances)
        assert sum(figures.values()) == tasks
        assert figures["curriculum/new"] == sum(len(steps) == 1 for steps in met.values())
    for steps in met.values():
        assert 0 <= steps[1] <= first + ahead
        assert max(b - a for a, b in zip(steps[1:], [*steps[2:], total], strict=True)) <= first + bound


def test_what_is_new_comes_first_then_what_is_being_learned_and_the_retired_are_looked_at_again() -> None:
    chances = [1.0] * 4 + [0.0] * 4 + [0.5] * 4
    schedule = curriculum(12, 4, shuffle=False, look_again=0.25)
    figures = [play(schedule, step, chances, seed=5) for step in range(60)]
    assert [row["curriculum/new"] for row in figures[:4]] == [8, 4, 0, 0]
    last = {name.partition("/")[2]: value for name, value in figures[-1].items()}
    assert tuple(last) == POOLS
    assert last == {"new": 0, "learning": 4, "mastered": 4, "hopeless": 4}


def test_a_task_that_changes_moves_between_the_pools() -> None:
    schedule = curriculum(4, 2, look_again=0.5)
    assert [play(schedule, step, [0.0] * 4) for step in range(2)][-1]["curriculum/hopeless"] == 4
    assert [play(schedule, step, [0.5] * 4, seed=3) for step in range(2, 9)][-1]["curriculum/learning"] >= 3
    assert [play(schedule, step, [1.0] * 4) for step in range(9, 40)][-1]["curriculum/mastered"] == 4


@pytest.mark.parametrize(
    ("rewards", "right", "wrong", "attempts"),
    [
        ([1.0, 0.0, None, 1.0], 2, 1, 4),
        ([0.1, 0.4, 0.1], 1, 2, 3),  # none is right, and there is something to learn all the same
        ([0.3, 0.3], 0, 2, 2),
        ([0.1 + 0.2, 0.3], 0, 2, 2),  # equal but for rounding
        ([None, None], 0, 0, 2),
    ],
)
def test_a_group_counts_what_was_right_else_what_was_better(
    rewards: list[float | None], right: int, wrong: int, attempts: int
) -> None:
    record = record_group(group_of(Task("a", "?"), rewards), 7)
    assert record == ("a", right, wrong, attempts, 7)
    assert record.pool == ("learning" if right and wrong else "hopeless")


def test_the_seed_decides_and_a_run_that_plays_ahead_draws_no_later_than_it_may(tmp_path: Path) -> None:
    """Each step is drawn as soon as its first episode may begin, or just when it is trained: the same tasks."""
    chances = [n / 11 for n in range(12)]

    def tasks_of(seed: int, *, early: bool, stop: int | None = None) -> list[list[str]]:
        schedule, drawn = curriculum(12, 3, seed, ahead=2), []
        for step in range(20):
            if step == stop:
                schedule.save(tmp_path, step)
                schedule = curriculum(12, 3, seed, ahead=2)
                schedule.load(tmp_path)
            for number in range(step, step + 3 if early else step + 1):
                schedule.tasks(number)
            drawn.append([task.task_id for task in (*schedule.tasks(step), *schedule.further(step))])
            play(schedule, step, chances)
        return drawn

    straight = tasks_of(1, early=False)
    assert straight == tasks_of(1, early=True) != tasks_of(2, early=True)
    for stop in (1, 2, 7, 19):
        assert tasks_of(1, early=True, stop=stop) == straight
    assert all(len(set(names)) == 12 for names in straight)  # the further tasks are the rest, none twice


def test_a_checkpoint_of_other_tasks_or_of_none_is_not_gone_on_from(tmp_path: Path) -> None:
    schedule = curriculum(4, 2)
    with pytest.raises(RunFolderError, match=r"has nothing of astune\.trainer\.curriculum"):
        schedule.load(tmp_path)
    play(schedule, 0, [0.5] * 4)
    schedule.save(tmp_path, 1)
    with pytest.raises(RunFolderError, match=r"training task \d was '\d' and is None"):
        curriculum(1, 1).load(tmp_path)


CURRICULUM = ("astune.trainer.curriculum.enabled=true", "astune.evaluation.after=false", "astune.trainer.total_steps=7")
REFILLED = (*CURRICULUM, "astune.algorithm.dynamic_sampling=2")
AHEAD = (*CURRICULUM, "astune.synchronizer.style=async", "astune.synchronizer.max_staleness=1")


@pytest.mark.fault(
    "Runs and resuming",
    "a run with a curriculum, alone, with dynamic sampling or ahead of training, is killed anywhere in a step",
    "resumed, it draws the same tasks and goes on bit for bit as if never stopped",
)
@pytest.mark.parametrize("options", [CURRICULUM, REFILLED, AHEAD], ids=["alone", "refilled", "ahead"])
def test_a_run_that_is_killed_and_resumed_equals_one_that_never_was(
    write_job: WriteJob, run_job: RunJob, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    conf = write_job(tasks=6)
    options = (*options, agent(conf, "teaches_by_task"))
    straight = run_job(conf, *options).run_dir
    rows = timeless(straight)
    assert [sum(row[f"curriculum/{pool}"] for pool in POOLS) for row in rows] == [6.0] * 7
    assert rows[-1]["curriculum/learning"] == 2  # the tasks 0 and 3 teach
    draw = random.Random(len(options))
    owner, place = draw.choice([(CountingLearner, "update"), (CountingLearner, "publish"), (MetricsLog, "log")])
    with monkeypatch.context() as patch:
        raise_at(patch, 4, owner, place)
        with pytest.raises(Killed):
            run_job(conf, *options, "astune.experiment_name=killed")
    resumed = run_job(conf, *options, "astune.experiment_name=killed", resume=True).run_dir
    assert sorted(played(resumed)) == sorted(played(straight))
    ends = [run / "checkpoints" / "step_000007" for run in (straight, resumed)]
    assert (ends[0] / "curriculum.json").read_bytes() == (ends[1] / "curriculum.json").read_bytes()
    if AHEAD[-1] not in options:  # else which version an episode began with is a matter of when it was stopped
        assert timeless(resumed) == timeless(straight)
        for file in ends[0].iterdir():
            assert file.read_bytes() == (ends[1] / file.name).read_bytes()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("astune.trainer.curriculum.fade=0.1", "curriculum.fade: there is no curriculum without enabled: true"),
        (
            f"{CURRICULUM[0]} astune.rollout.num_repeat=1 astune.algorithm.advantage=running_mean",
            "num_repeat: 1 attempt",
        ),
        (f"{CURRICULUM[0]} astune.algorithm.method=distill", "'distill' does not learn from rewards"),
        (f"{CURRICULUM[0]} astune.algorithm.method=sft", "'sft' does not learn from rewards"),
    ],
)
def test_what_a_curriculum_cannot_work_with_is_said_before_the_run(conf: Path, overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(conf, overrides.split())
    assert message in str(caught.value)


def test_the_pools_are_shown_by_step_and_by_task(
    write_job: WriteJob, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = write_job(tasks=6)
    run = run_job(conf, *CURRICULUM, agent(conf, "teaches_by_task")).run_dir
    capsys.readouterr()
    assert main(["tasks", "pools", str(run), "--show", "1"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:5] == ["step", *POOLS] and len(table) == 13
    assert table[1].split()[:2] == ["1", "4"] and table[7].split()[:5] == ["7", "0", "2", "0", "4"]
    assert table[7].endswith("█" * 16 + "░" * 32)
    assert table[9] == "learning as of step_000007: 2 tasks" and "of" in table[10]
    assert main(["tasks", "pools", str(run), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert {row["task_id"]: row["pool"] for row in known["tasks"]} == {
        task.task_id: "learning" if number % 3 == 0 else "hopeless" for number, task in enumerate(tasks_of(conf))
    }
    assert [row["step"] for row in known["steps"]] == [*range(1, 8)]
    page = write_report(run).read_text("utf-8")
    assert [page.count(f'class="pool{number}"') for number in range(4)] == [1] * 4 and "new 4 → 0" in page
    plain = run_job(conf, "astune.experiment_name=plain").run_dir
    assert 'class="pools"' not in write_report(plain).read_text("utf-8")
    capsys.readouterr()
    assert main(["tasks", "pools", str(plain)]) == 2
    assert "no step of this run was drawn by astune.trainer.curriculum" in capsys.readouterr().err


def tasks_of(conf: Path) -> list[Task]:
    return list(read_task_sets(load_config(conf, ()).config.astune.task_reader).training)
