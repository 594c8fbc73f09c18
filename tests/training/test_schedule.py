"""Which tasks a step trains on: every epoch all of them, in an order that the seed alone decides."""

import hashlib
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from astune.config.schema import AstuneConfig, TrainerConfig
from astune.training.schedule import Schedule, TaskSchedule
from astune.types import Task


def trainer(per_step: int) -> TrainerConfig:
    return TrainerConfig(tasks_per_step=per_step, total_steps=None, total_epochs=5)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 9), st.booleans())
def test_an_epoch_takes_every_item_once_but_for_what_does_not_fill_a_step(
    count: int, per_step: int, seed: int, shuffle: bool
) -> None:
    per_step = min(per_step, count)
    schedule = Schedule(range(count), trainer(per_step), seed, "items", shuffle=shuffle)
    steps = count // per_step
    for epoch in range(3):
        items = [item for step in range(steps) for item in schedule.at(epoch * steps + step)]
        assert len(items) == len(set(items)) == steps * per_step
        assert set(items) <= set(range(count))
        if not shuffle:
            assert items == list(range(steps * per_step))


@given(st.integers(2, 60), st.integers(1, 6), st.integers(0, 9), st.data())
def test_a_run_that_goes_on_at_any_step_gets_the_very_next_tasks(
    count: int, per_step: int, seed: int, data: st.DataObject
) -> None:
    per_step = min(per_step, count)
    whole = Schedule(range(count), trainer(per_step), seed, "items")
    order = [whole.at(step) for step in range(whole.total_steps)]
    start = data.draw(st.integers(0, whole.total_steps - 1))
    resumed = Schedule(range(count), trainer(per_step), seed, "items")
    assert [resumed.at(step) for step in range(start, whole.total_steps)] == order[start:]


def test_epochs_and_seeds_differ_in_order() -> None:
    schedule = Schedule(range(30), trainer(30), 1, "items")
    assert schedule.at(0) != schedule.at(1)
    assert schedule.at(0) != Schedule(range(30), trainer(30), 2, "items").at(0)


ORDER = """\
from astune.training.schedule import Schedule
from astune.config.schema import TrainerConfig
schedule = Schedule(range(5000), TrainerConfig(tasks_per_step=50, total_epochs=3), 42, "items")
print([schedule.at(step) for step in (0, 99, 100, 250)])
"""
DIGEST = "e34dd33c0ec0ca04"


def test_the_order_is_the_same_in_every_process_and_on_every_platform() -> None:
    """The digest was taken once; another Python, machine or hash seed must give the same."""
    for hash_seed in ("0", "7"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        printed = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, env=environment, check=True).stdout
        assert hashlib.sha256(printed).hexdigest()[:16] == DIGEST


def test_tasks_are_read_in_their_order_where_shuffle_is_off() -> None:
    tasks = [Task(str(number), "?") for number in range(6)]
    config = AstuneConfig.model_validate({"task_reader": {"shuffle": False}, "trainer": {"tasks_per_step": 2}})
    schedule = TaskSchedule(tasks, config)
    assert [task.task_id for step in range(4) for task in schedule.tasks(step)] == [*"01234501"]
