"""What a workflow or a judge returns and raises stays within its episode, and can be written and read back."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from astune.errors import CtrlC, WorkflowError
from astune.monitor import EpisodeLog, RunDir, read_episodes
from astune.rollout.metrics import rollout_metrics
from astune.support.concurrency import run_and_leave
from astune.support.user_values import figure
from astune.types import Group, StopReason, Verdict, WorkflowOutput
from tests.rows import each_row


class Stop(BaseException):
    pass


class NoText:
    def __str__(self):
        raise SystemExit("text")

    __repr__ = __str__


class NoTextError(Exception):
    def __str__(self):
        raise Stop


class NoEquality:
    def __eq__(self, other):
        raise ValueError("ambiguous")

    __hash__ = None


def cyclic():
    value = [1]
    value.append({"again": value})
    return value


def deep():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


def doubled():
    value = [1]
    for _ in range(80):
        value = [value, value]
    return value


def kept(tmp_path, episode):
    """The episode as it is written and read back, and its figures."""
    with EpisodeLog(RunDir(tmp_path)) as log:
        log.write(episode, step=1, phase="train")
    rollout_metrics([Group(episode.task, (episode,))])
    (record,) = read_episodes(tmp_path / "episodes" / "train.jsonl")
    return record.episode


@pytest.mark.fault(
    "Runs and resuming",
    "a workflow returns metrics that are no finite numbers, or names that are no texts",
    "the episode fails with an error that names the metric",
)
@each_row(
    "metrics",
    [
        {"a": "fast"},
        {"a": None},
        {"a": float("nan")},
        {"a": float("-inf")},
        {"a": 10**400},
        {"a": 1e308},
        {"a": [1]},
        {"a": NoText()},
        {1: 2.0},
        {None: 1.0},
        [("a", 1.0)],
        "none",
    ],
)
@each_row("reward", [1.0, None])
async def test_metrics_that_are_no_numbers_fail_their_episode(run_one, tmp_path, metrics, reward):
    async def workflow(task, tuner):
        return WorkflowOutput(answer="4", reward=reward, metrics=metrics)

    episode = await run_one(workflow)
    assert (episode.stop_reason, episode.error.kind, episode.verdict) == (StopReason.ERROR, "WorkflowError", None)
    assert "metrics" in episode.error.message or "a must be a finite number" in episode.error.message
    assert kept(tmp_path, episode).error.kind == "WorkflowError"


async def test_numbers_of_numpy_and_truth_values_are_numbers(run_one, tmp_path):
    import numpy

    async def workflow(task, tuner):
        metrics = {"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.bool_(True), "d": True}
        return WorkflowOutput(answer=numpy.int64(7), reward=numpy.float32(0.25), metrics=metrics)

    episode = kept(tmp_path, await run_one(workflow))
    assert episode.verdict == Verdict(0.25, judged_by="workflow")
    assert episode.output.metrics == {"a": 0.5, "b": 3.0, "c": 1.0, "d": 1.0}
    assert episode.output.answer == 7


@pytest.mark.fault(
    "Runs and resuming",
    "rewards are so large that their sum or square is infinite",
    "the episode is not judged; its error names the reward",
)
@pytest.mark.parametrize("reward", [1e308, -1e200, 10**400])
async def test_rewards_beyond_all_measure_are_no_rewards(run_one, reward):
    async def workflow(task, tuner):
        return WorkflowOutput(answer="4", reward=reward)

    class Huge:
        async def judge(self, task, episode):
            return Verdict(reward)

    async def asks(task, tuner):
        return WorkflowOutput(answer="4")

    for episode in (await run_one(workflow), await run_one(asks, judge=Huge())):
        assert (episode.stop_reason, episode.error.stage, episode.verdict) == (StopReason.ERROR, "judge", None)
        assert "reward" in episode.error.message


@pytest.mark.fault(
    "Records and checkpoints",
    "an answer holds itself, is too deep or too large, or its class raises when it is read",
    "it is judged as it is and recorded as far as it can be; the record says where it was cut",
)
@each_row("make", [cyclic, deep, doubled, NoText, NoEquality, lambda: 10**5000, lambda: {NoText(): 1}])
async def test_any_answer_can_be_recorded(run_one, tmp_path, make):
    answer = make()

    async def workflow(task, tuner):
        return WorkflowOutput(answer=answer, reward=1.0)

    episode = await run_one(workflow)
    assert episode.reward == 1.0
    assert kept(tmp_path, episode).reward == 1.0


async def test_an_array_as_answer_can_be_recorded(run_one, tmp_path):
    import numpy

    async def workflow(task, tuner):
        return WorkflowOutput(answer=numpy.array([1, 2]), reward=1.0)

    assert kept(tmp_path, await run_one(workflow)).output.answer == "[1 2]"


BASE = [Stop("mine"), KeyboardInterrupt("mine"), SystemExit(3), GeneratorExit("mine"), NoTextError(), StopIteration(1)]


@pytest.mark.fault(
    "Runs and resuming",
    "a workflow or a judge raises KeyboardInterrupt, SystemExit, a BaseException of its own, an error without text",
    "its episode fails, and no other",
)
@each_row("error", BASE, ids=lambda error: type(error).__name__)
async def test_whatever_a_workflow_or_a_judge_raises_ends_its_episode_only(run_one, tmp_path, error):
    async def raises(task, tuner):
        raise error

    async def answers(task, tuner):
        return WorkflowOutput(answer="4")

    class Raises:
        async def judge(self, task, episode):
            raise error

    class RaisesAtOnce:
        def judge(self, task, episode):
            raise error

    for episode in (
        await run_one(raises),
        await run_one(answers, judge=Raises()),
        await run_one(answers, judge=RaisesAtOnce()),
    ):
        assert (episode.stop_reason, episode.verdict) == (StopReason.ERROR, None)
        assert kept(tmp_path, episode).error == episode.error
        (tmp_path / "episodes" / "train.jsonl").unlink()


@pytest.mark.parametrize("error", BASE[:4], ids=lambda error: type(error).__name__)
def test_what_a_task_beside_the_workflow_raises_ends_its_episode_only(make_setup, error):
    from astune.rollout.group import run_groups
    from astune.types import Sampling, Task

    async def tool():
        raise error

    async def workflow(task, tuner):
        if task.task_id == "bad":
            await asyncio.gather(tool())
        await asyncio.sleep(0)
        return WorkflowOutput(answer="4", reward=1.0)

    tasks = [Task("bad", "?"), Task("good", "?")]
    bad, good = run_and_leave(
        run_groups(
            tasks, 1, make_setup(workflow), seed=1, sampling=Sampling(max_tokens=8), max_concurrent=2, label="train"
        )
    )
    assert bad.episodes[0].stop_reason is StopReason.ERROR
    assert good.episodes[0].reward == 1.0


def test_a_real_ctrl_c_passes_through_a_workflow(make_setup):
    import signal

    from astune.rollout.group import run_groups
    from astune.types import Sampling, Task

    async def workflow(task, tuner):
        signal.raise_signal(signal.SIGINT)
        return WorkflowOutput(answer="4", reward=1.0)

    with pytest.raises(CtrlC):
        run_and_leave(
            run_groups(
                [Task("t", "?")],
                1,
                make_setup(workflow),
                seed=1,
                sampling=Sampling(max_tokens=8),
                max_concurrent=2,
                label="train",
            )
        )


@pytest.mark.fault(
    "Agents and the engine",
    "A workflow swallows its cancellation when the run ends",
    "It is left behind, which is said once, in words",
)
def test_a_task_that_swallows_its_cancellation_is_left_behind_and_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr("astune.support.concurrency.LEAVE_SECONDS", 0.05)
    ended = asyncio.Event()

    async def stubborn():
        while not ended.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.set() if len(caplog.records) else None

    async def main():
        main.task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        return 7

    assert run_and_leave(main()) == 7
    assert "stubborn" in caplog.text
    del main.task
    gc.collect()
    assert "destroyed" not in caplog.text and len(caplog.records) == 1


@each_row("verdict", [None, "good", Verdict("1"), Verdict(1.0, passed="yes"), Verdict(1.0, metrics=[1])])
async def test_verdicts_that_are_none_are_errors_of_the_judge(run_one, verdict):
    class Odd:
        async def judge(self, task, episode):
            return verdict

        async def judge_group(self, task, episodes):
            return [verdict] * len(episodes)

    async def workflow(task, tuner):
        return WorkflowOutput(answer="4")

    episode = await run_one(workflow, judge=Odd())
    assert (episode.error.stage, episode.verdict) == ("judge", None)


def test_rewards_of_agents_that_add_up_beyond_all_measure_are_refused():
    assert figure(sys.float_info.max) is None and figure(1e30) == 1e30
    assert issubclass(WorkflowError, Exception)
