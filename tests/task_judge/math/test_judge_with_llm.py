import json
from collections.abc import Iterator

import pytest

from astune.errors import ConfigError, JudgeError
from astune.task_judge.judge_base import GroupJudge
from astune.task_judge.math.judge_with_llm import MathAnswerAndLlmAsJudge
from astune.testing import ScriptedChatServer
from astune.types import StopReason
from tests.task_judge.llm.judging import attempt, attempts, config, fences, task, turn


def says_right(body) -> str:
    """A model that finds every answer right, so that its verdicts can be told from those of mathematics."""
    assert body["messages"][0]["content"].startswith("Judge by criteria.")
    return json.dumps({"criteria": [{"id": "correct", "reason": "I say so", "score": 1}]})


@pytest.fixture
def server() -> Iterator[ScriptedChatServer]:
    with ScriptedChatServer(says_right) as server:
        yield server


@pytest.mark.parametrize(
    ("answer", "reward"),
    [(r"\boxed{72}", 1.0), (r"\boxed{73}", 0.0), (r"\boxed{x+72}", 0.0), ("", 0.0), ("The answer is 36+36.", 1.0)],
)
async def test_what_mathematics_can_tell_costs_no_call(server, answer: str, reward: float) -> None:
    (episode,) = attempts(task("72"), answer)
    verdict = await MathAnswerAndLlmAsJudge(config(server)).judge(episode.task, episode)
    assert (verdict.reward, verdict.metrics["asked_llm"]) == (reward, 0.0)
    assert server.requests == []


@pytest.mark.parametrize(
    ("reference", "answer", "read"),
    [
        ("72", r"\boxed{six dozen}", 0.0),
        ("72", "It comes to 72 clips, I think", 0.0),
        ("an isosceles triangle", r"\boxed{two equal sides}", 0.0),
        ("}{x+", r"\boxed{x+1}", 0.0),
        ("2", r"\boxed{9^{9^{9^9}}}", 0.0),
    ],
)
async def test_a_model_is_asked_where_mathematics_cannot_tell(server, reference: str, answer: str, read: float) -> None:
    (episode,) = attempts(task(reference), answer)
    limit = 1.0 if "9^" in answer else 60.0  # which nobody can work out in any time
    judge = MathAnswerAndLlmAsJudge(config(server).model_copy(update={"timeout": limit}))
    verdict = await judge.judge(episode.task, episode)
    assert (verdict.reward, verdict.judged_by) == (1.0, "LlmAsJudge(m0)")
    assert (verdict.metrics["asked_llm"], verdict.metrics["answer_read"]) == (1.0, read)
    assert ("answer", answer) in fences(server.requests[0]) and ("reference", reference) in fences(server.requests[0])


async def test_a_model_sees_the_whole_answer_where_the_format_has_none(server) -> None:
    (episode,) = attempts(task("72"), "seventy-two")
    boxed = config(server).model_copy(update={"answer_format": "boxed"})
    verdict = await MathAnswerAndLlmAsJudge(boxed).judge(episode.task, episode)
    assert verdict.metrics["asked_llm"] == 1.0 and verdict.metrics["answer_found"] == 0.0
    assert ("answer", "seventy-two") in fences(server.requests[0])


async def test_of_a_group_only_the_unreadable_are_asked_about_and_each_gets_its_own_verdict(server) -> None:
    episodes = attempts(task("72"), "#### 72", "six dozen clips, says he", "#### 71", "I don't know", "")
    judge = MathAnswerAndLlmAsJudge(config(server, mode="listwise"))
    verdicts = await judge.judge_group(episodes[0].task, episodes)
    assert [verdict.reward for verdict in verdicts] == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert [verdict.metrics["asked_llm"] for verdict in verdicts] == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert len(server.requests) == 2 and isinstance(judge, GroupJudge)


async def test_a_model_that_fails_costs_only_those_that_it_was_asked_about() -> None:
    with ScriptedChatServer(lambda body: "no idea") as server:
        episodes = attempts(task("72"), "#### 72", r"\boxed{six dozen}")
        right, failed = await MathAnswerAndLlmAsJudge(config(server)).judge_group(episodes[0].task, episodes)
    assert right.reward == 1.0
    assert isinstance(failed, JudgeError) and "'six dozen' (boxed) cannot be compared with the reference" in str(failed)


async def test_an_episode_without_output_and_a_cut_off_one_are_not_for_a_model(server) -> None:
    question = task("72")
    broken = attempt(question, None, stop=StopReason.ERROR)
    cut = attempt(question, "It is seventy", turns=[turn([], {"content": "It is seventy"}, finish="length")])
    error, verdict = await MathAnswerAndLlmAsJudge(config(server)).judge_group(question, [broken, cut])
    assert isinstance(error, JudgeError) and "ended with error" in str(error)
    assert verdict.reward == 0.0 and server.requests == []


def test_it_needs_a_model() -> None:
    with pytest.raises(ConfigError, match=r"astune.task_judge.llm"):
        MathAnswerAndLlmAsJudge(config())
