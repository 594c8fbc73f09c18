import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading

import pytest

from astune.config.tasks import ReasoningGymConfig, TaskReaderConfig
from astune.errors import ConfigError, MissingDependency, TaskError
from astune.task_reader import make_reader
from astune.task_reader.reasoning_gym import TaskReaderReasoningGym
from astune.task_reader.task_sets import read_task_sets
from astune.workers.reasoning_gym_client import TaskMaker

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")


@pytest.fixture(scope="module")
def maker() -> TaskMaker:
    return TaskMaker()


@pytest.fixture(autouse=True)
def processes_are_shared(maker: TaskMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes more than a second to start."""
    monkeypatch.setattr("astune.task_reader.reasoning_gym.TaskMaker", lambda: maker)


def config(training: int = 6, validation: int = 3, seed: int = 0, **datasets: dict[str, object]) -> TaskReaderConfig:
    section = ReasoningGymConfig(datasets=datasets, training_tasks=training, validation_tasks=validation, seed=seed)
    return TaskReaderConfig(type="reasoning_gym", reasoning_gym=section)


def test_data_sets_take_turns_and_the_splits_share_no_question() -> None:
    sets = read_task_sets(config(gcd={}, coin_flip={"min_trials": 3, "max_trials": 3}))
    assert [task.task_id for task in sets.held_out] == ["gcd-0", "coin_flip-0", "gcd-1"]
    assert [task.metadata["dataset"] for task in sets.training] == ["coin_flip", "gcd"] * 3
    questions = [task.query for split in (sets.training, sets.held_out) for task in split]
    assert len(set(questions)) == 9


def test_a_task_has_all_that_the_verifier_needs_and_json_keeps_it() -> None:
    (task,) = TaskReaderReasoningGym(config(1, 0, rearc={})).read("training")
    assert task.query == task.metadata["question"] and task.answer == task.metadata["answer"]
    assert task.place == "rearc:1" and "(" in task.metadata["entry"]["metadata"]  # tuples
    assert json.loads(json.dumps(task.metadata)) == task.metadata
    assert list(TaskReaderReasoningGym(config(1, 0, rearc={})).read("validation")) == []


def test_the_process_that_makes_tasks_ends_when_all_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astune.task_reader.reasoning_gym.TaskMaker", TaskMaker)
    before = pools()
    reader = TaskReaderReasoningGym(config(3, 2, gcd={}, lcm={}))
    training = reader.read("training")
    assert training[0] and pools() == before + 1
    assert len(list(training)) == 3 and len(list(reader.read("validation"))) == 2
    assert pools() == before


def pools() -> int:
    gc.collect()
    return sum(thread.name == "worker-pool" for thread in threading.enumerate())


def test_a_data_set_without_a_reference_answer_gives_none() -> None:
    (task,) = TaskReaderReasoningGym(config(1, 0, rush_hour={})).read("training")
    assert task.answer is None


def test_more_training_tasks_change_none_of_the_others_and_another_seed_all() -> None:
    small, large, other = (
        TaskReaderReasoningGym(config(training, seed=seed, chain_sum={}))
        for training, seed in ((3, 0), (30, 0), (30, 1))
    )
    assert list(small.read("validation")) == list(large.read("validation"))
    assert list(small.read("training")) == list(large.read("training"))[:3]
    assert not {task.query for task in large.read("training")} & {task.query for task in other.read("training")}


def test_the_tasks_are_the_same_in_every_process() -> None:
    """Of data sets that draw from Python sets too, whose order depends on the hash seed of the interpreter."""
    datasets = {"isomorphic_strings": {}, "ransom_note": {}, "polynomial_multiplication": {}}
    code = (
        "from astune.config.tasks import TaskReaderConfig\n"
        "from astune.task_reader import make_reader\n"
        f"source = {{'datasets': {datasets}, 'training_tasks': 6, 'validation_tasks': 0}}\n"
        "reader = make_reader(TaskReaderConfig(type='reasoning_gym', reasoning_gym=source))\n"
        "print([(task.query, task.answer, task.metadata) for task in reader.read('training')])\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert first == second and first.startswith(b"[(") and len(first) > 1000


def test_too_few_different_questions_are_counted() -> None:
    reader = TaskReaderReasoningGym(config(40, 1, coin_flip={"min_trials": 2, "max_trials": 2}))
    with pytest.raises(TaskError, match=r"datasets\.coin_flip: only \d+ different questions among .* but 41 are asked"):
        list(reader.read("training"))


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"countdwn": {}}, r"\.datasets\.countdwn: reasoning-gym has no data set 'countdwn'\. .* 'countdown'\?"),
        ({"gcd": {"min_numbrs": 2}}, r"\.datasets\.gcd\.min_numbrs: .* no option 'min_numbrs'\. .* 'min_numbers'\?"),
        ({"gcd": {"seed": 2}}, r"\.datasets\.gcd\.seed: the data set 'gcd' has no option 'seed'"),
        ({"gcd": {"min_numbers": 9}}, r"\.datasets\.gcd: the data set 'gcd' refuses .*: max_numbers must be >= min_nu"),
    ],
)
def test_unknown_names_and_values_are_errors_with_their_key(datasets: dict[str, dict], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^astune\.task_reader\.reasoning_gym" + message):
        list(TaskReaderReasoningGym(config(**datasets)).read("training"))


def test_no_data_set_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"astune\.task_reader\.reasoning_gym\.datasets is empty"):
        make_reader(config())


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r'pip install "astune\[reasoning-gym\]"'):
        TaskMaker()
