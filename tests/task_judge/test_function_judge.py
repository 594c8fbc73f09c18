import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from astune.errors import JudgeError, PluginError
from astune.rollout.verdict import ask_judge, verdict_or_error
from astune.task_judge import FunctionJudge
from astune.types import Episode, JudgeOutput, StopReason, Task, Verdict
from tests.rows import each_row

MakeEpisode = Callable[..., Episode]


async def verdict_of(function: Callable[..., Any], episode: Episode) -> Verdict:
    return await FunctionJudge(function, "my.module:judge").judge(episode.task, episode)


async def test_a_function_of_task_and_episode_gets_them_as_they_are(make_episode: MakeEpisode) -> None:
    episode = make_episode("72", "72")

    def judge(task: Task, episode: Episode) -> bool:
        return task is episode.task and episode.output is not None and episode.output.answer == task.answer

    assert await verdict_of(judge, episode) == Verdict(1.0, passed=True, judged_by="my.module:judge")


async def test_a_judge_function_of_agentscope_1_gets_the_row_and_the_response(make_episode: MakeEpisode) -> None:
    episode = make_episode("72", "72", question="6 * 12?", answer="72")

    async def judge(
        task: dict[str, Any], response: Any, auxiliary_models: Mapping[str, Any], logger: logging.Logger
    ) -> JudgeOutput:
        logger.debug("judging")
        assert not auxiliary_models
        right = task.pop("answer") == response
        return JudgeOutput(reward=2.0 if right else 0.0, metrics={"exact": 1.0})

    expected = Verdict(2.0, metrics={"exact": 1.0}, judged_by="my.module:judge")
    assert await verdict_of(judge, episode) == expected
    assert await verdict_of(judge, episode) == expected, "the judge must not be able to change the task"


class AgentScopesJudgeOutput:
    """The fields of `agentscope.tuner.JudgeOutput`, which is not imported."""

    def __init__(self, reward: float, metrics: dict[str, float] | None = None) -> None:
        self.reward = reward
        self.metrics = metrics


@each_row(
    ("returned", "verdict"),
    [
        (True, Verdict(1.0, passed=True, judged_by="my.module:judge")),
        (False, Verdict(0.0, passed=False, judged_by="my.module:judge")),
        (3, Verdict(3.0, judged_by="my.module:judge")),
        (-0.5, Verdict(-0.5, judged_by="my.module:judge")),
        (AgentScopesJudgeOutput(0.25), Verdict(0.25, judged_by="my.module:judge")),
        (
            AgentScopesJudgeOutput(0.25, {"length": 3}),
            Verdict(0.25, metrics={"length": 3}, judged_by="my.module:judge"),
        ),
        (Verdict(0.7, True, "because", judged_by="me"), Verdict(0.7, True, "because", judged_by="me")),
    ],
)
async def test_what_a_function_may_return(make_episode: MakeEpisode, returned: Any, verdict: Verdict) -> None:
    assert await verdict_of(lambda task, episode: returned, make_episode()) == verdict


@pytest.mark.fault(
    "Judges", "a judge returns something that is no reward", "no verdict, and an error that names the judge"
)
@each_row(
    ("returned", "message"),
    [
        (float("nan"), "reward must be a finite number, found nan"),
        (float("inf"), "reward must be a finite number, found inf"),
        (Verdict(float("-inf")), "reward must be a finite number, found -inf"),
        (JudgeOutput(reward="high"), "reward must be a finite number, found 'high'"),  # type: ignore[arg-type]
        (JudgeOutput(1.0, {"length": float("nan")}), "length must be a finite number, found nan"),
        (None, "returned None (NoneType), expected a number, a truth value, a JudgeOutput or a Verdict"),
        ("1.0", "returned '1.0' (str), expected a number"),
    ],
)
async def test_what_is_no_reward_is_an_error_that_names_the_judge(
    make_episode: MakeEpisode, returned: Any, message: str
) -> None:
    with pytest.raises(JudgeError, match=r"my\.module:judge") as error:
        await verdict_of(lambda task, episode: returned, make_episode())
    assert message in str(error.value)


def test_a_mistyped_parameter_is_an_error_that_lists_the_allowed_ones() -> None:
    with pytest.raises(PluginError) as error:
        FunctionJudge(lambda task, respnse: 1.0, "my.module:judge")
    assert "judge my.module:judge: unknown parameter 'respnse'. Did you mean 'response'?" in str(error.value)
    assert "Allowed: task, episode, response, auxiliary_models, logger" in str(error.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda task: 1.0, "needs exactly one of 'episode', 'response', 'model_answer'"),
        (lambda task, episode, response: 1.0, "needs exactly one of 'episode', 'response', 'model_answer'"),
        (lambda task, episode, **kwargs: 1.0, "unknown parameter 'kwargs'"),
        (lambda task, episode, /: 1.0, "parameter 'task' cannot be passed by name"),
    ],
)
def test_other_signatures_are_errors_before_the_run_starts(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        FunctionJudge(function, "my.module:judge")


async def test_a_function_that_waits_does_not_hold_up_the_event_loop(make_episode: MakeEpisode) -> None:
    released = threading.Event()

    def judge(task: Task, episode: Episode) -> float:
        assert released.wait(60)
        return 1.0

    waiting = asyncio.create_task(verdict_of(judge, make_episode()))
    while not any(thread.name == "judge" for thread in threading.enumerate()):
        await asyncio.sleep(0.001)
    released.set()
    assert (await waiting).reward == 1.0


@pytest.mark.fault(
    "Judges", "judge functions that block", "they run in threads of their own and are given up in time; others go on"
)
async def test_any_number_of_judges_that_never_end_hold_up_no_other(make_episode: MakeEpisode) -> None:
    never = threading.Event()

    def hang(task: Task, episode: Episode) -> float:
        never.wait()
        return 1.0

    hanging = [verdict_or_error(FunctionJudge(hang, "my.module:judge"), make_episode(), 0.1) for _ in range(50)]
    results = await asyncio.gather(*hanging, verdict_of(lambda task, episode: 1.0, make_episode()))
    never.set()
    assert [str(result) for result in results[:-1]] == [
        "the judge took longer than 0.1 s (astune.task_judge.timeout)"
    ] * 50
    assert isinstance(results[-1], Verdict)


async def test_an_async_function_that_never_ends_is_stopped(make_episode: MakeEpisode) -> None:
    stopped = asyncio.Event()

    async def hang(task: Task, episode: Episode) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 1.0

    with pytest.raises(JudgeError, match=r"took longer than 0\.1 s"):
        await ask_judge(FunctionJudge(hang, "my.module:judge"), make_episode(), 0.1)
    assert stopped.is_set()


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), asyncio.TimeoutError("the judge's own")])
async def test_an_error_of_the_users_function_stays_what_it_is(make_episode: MakeEpisode, error: Exception) -> None:
    def judge(task: Task, episode: Episode) -> float:
        raise error

    async def async_judge(task: Task, episode: Episode) -> float:
        raise error

    for function in (judge, async_judge):
        with pytest.raises(type(error), match=str(error)):
            await verdict_of(function, make_episode())


class CallableJudge:
    async def __call__(self, task: Task, episode: Episode) -> float:
        return 0.5


async def answer_length(task: Task, response: str) -> float:
    return len(response)


@pytest.mark.parametrize(("function", "reward"), [(CallableJudge(), 0.5), (functools.partial(answer_length), 2.0)])
async def test_objects_that_can_be_called_and_partial_functions_are_functions_too(
    make_episode: MakeEpisode, function: Callable[..., Any], reward: float
) -> None:
    assert (await verdict_of(function, make_episode("72"))).reward == reward


async def test_an_episode_without_output_gives_a_response_of_none(make_episode: MakeEpisode) -> None:
    episode = make_episode(None, None, StopReason.MAX_TURNS)
    assert (await verdict_of(lambda task, response: response is None, episode)).passed is True
