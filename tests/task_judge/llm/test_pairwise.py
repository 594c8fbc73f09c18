"""LlmAsJudge in pairs: both orders, few opponents, equal and missing answers."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.errors import JudgeError
from astune.task_judge.llm.judge import LlmAsJudge
from astune.task_judge.llm.pairwise import opponents
from astune.testing import ScriptedChatServer
from astune.types import StopReason
from tests.rows import each_row
from tests.task_judge.llm.judging import attempt, attempts, config, fences, quality, reply, task


async def judged(script, episodes, reference=None, **llm):
    """What the judge says, and how many calls it took."""
    with ScriptedChatServer(script) as server:
        verdicts = await LlmAsJudge(config(server, mode="pairwise", **llm)).judge_group(task(reference), episodes)
        return verdicts, len(server.requests)


async def test_the_reward_is_the_share_of_the_others_that_are_beaten():
    answers = ["quality 3", "quality 1", "quality 2 a", "quality 2 b"]
    verdicts, calls = await judged(reply, attempts(task(), *answers))
    assert [verdict.reward for verdict in verdicts] == pytest.approx([1.0, 0.0, 0.5, 0.5])
    assert calls == 6 * 2
    assert {name: verdicts[2].metrics[name] for name in ("wins", "ties", "losses", "position_consistency")} == {
        "wins": 1,
        "ties": 1,
        "losses": 1,
        "position_consistency": 1,
    }
    assert verdicts[0].metrics["llm_calls"] == 3
    assert {verdict.passed for verdict in verdicts} == {None}


@pytest.mark.fault(
    "Judges", "an LLM judge prefers whatever comes first", "both orders are asked, and the pair counts for neither"
)
async def test_a_judge_that_goes_by_the_place_decides_nothing():
    first = '{"reason": "it stands first", "better": "A"}'
    verdicts, _ = await judged(lambda body: first, attempts(task(), "quality 1", "quality 2", "quality 3"))
    assert [verdict.reward for verdict in verdicts] == [0.5] * 3
    assert {verdict.metrics["position_consistency"] for verdict in verdicts} == {0.0}


async def test_equal_answers_tie_and_missing_ones_lose_without_a_call():
    out = attempt(task(), None, 9, StopReason.MAX_TURNS)
    verdicts, calls = await judged(reply, [*attempts(task(), "quality 1", "quality 1", "quality 2", ""), out])
    assert [verdict.reward for verdict in verdicts] == pytest.approx([2.5 / 4, 2.5 / 4, 1.0, 0.5 / 4, 0.5 / 4])
    assert calls == 2
    assert verdicts[3].reason.endswith("no answer")


async def test_a_comparison_without_a_usable_reply_counts_for_neither():
    def loses_track(body):
        return "?" if {"quality 1", "quality 2"} <= {text for _, text in fences(body)} else reply(body)

    verdicts, _ = await judged(loses_track, attempts(task(), "quality 1", "quality 2", "quality 3"))
    assert [verdict.reward for verdict in verdicts] == [0.0, 0.0, 1.0]
    nothing, _ = await judged(lambda body: "?", attempts(task(), "quality 1", "quality 2"))
    assert all(isinstance(verdict, JudgeError) for verdict in nothing)


async def test_votes_are_averaged():
    given_replies = iter("AB" * 2 + "BA" * 1)  # two votes: the first wins twice, then loses

    with ScriptedChatServer(lambda body: f'{{"reason": "", "better": "{next(given_replies)}"}}') as server:
        settings = config(server, mode="pairwise", votes=3, max_concurrent=1)
        first, second = await LlmAsJudge(settings).judge_group(task(), attempts(task(), "a", "b"))
    assert (first.reward, second.reward) == pytest.approx((2 / 3, 1 / 3))
    assert first.metrics["vote_spread"] == 1.0


@each_row(("answer", "reward"), [("quality 3", 1.0), ("quality 2 too", 0.5), ("quality 1", 0.0), ("", 0.0)])
@each_row("mode", ["pairwise", "listwise"])
async def test_a_lone_attempt_is_compared_with_the_reference(mode, answer, reward):
    with ScriptedChatServer(reply) as server:
        judge = LlmAsJudge(config(server, mode=mode))
        verdict = await judge.judge(task("quality 2"), attempt(task("quality 2"), answer))
        names = [[name for name, _ in fences(request)] for request in server.requests]
    assert (verdict.reward, verdict.passed) == (reward, reward >= 0.5)
    assert names == ([["task", "criteria", "answer_A", "answer_B"]] * 2 if answer else [])


async def test_a_lone_attempt_without_reference_cannot_be_compared():
    with ScriptedChatServer(reply) as server:
        judge = LlmAsJudge(config(server, mode="pairwise"))
        with pytest.raises(JudgeError, match=r"no reference answer .*mode is not 'pointwise'"):
            await judge.judge(task(), attempt(task(), "quality 1"))
        same = await judge.judge(task("quality 1"), attempt(task("quality 1"), "quality 1"))
        assert (same.reward, len(server.requests)) == (0.5, 0)


async def test_the_reference_is_shown_to_who_compares():
    with ScriptedChatServer(reply) as server:
        judge = LlmAsJudge(config(server, mode="pairwise"))
        await judge.judge_group(task("72"), attempts(task("72"), "quality 1", "quality 2"))
        assert all(dict(fences(request))["reference"] == "72" for request in server.requests)


async def test_with_few_opponents_each_attempt_has_as_many():
    answers = [f"quality {i}" for i in range(6)]
    verdicts, calls = await judged(reply, attempts(task(), *answers), max_opponents=2)
    assert calls == 6 * 2
    assert {sum(verdict.metrics[name] for name in ("wins", "ties", "losses")) for verdict in verdicts} == {2}
    assert [verdict.reward for verdict in verdicts] == [0.0, 0.5, 0.5, 0.5, 0.5, 1.0]
    assert quality(answers[5]) == 5


@given(st.integers(2, 40), st.integers(1, 45) | st.none())
def test_opponents_are_different_and_equally_many(n, most):
    pairs = opponents(n, most)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(i != j for i, j in pairs)
    degrees = Counter(i for pair in pairs for i in pair)
    assert len(degrees) == n
    (degree,) = set(degrees.values())
    expected = n - 1 if most is None else min(most, n - 1)
    assert degree == expected or (n % 2 and expected % 2 and degree == max(2, expected - 1))


def always(better):
    return lambda body: json.dumps({"reason": "", "better": better})


@pytest.mark.fault(
    "Judges",
    "an LLM judge that always says A compares one answer with its reference",
    "the answer has neither passed nor failed: it is undecided",
)
@pytest.mark.parametrize("mode", ["pairwise", "listwise"])
@pytest.mark.parametrize("votes", [1, 3])
async def test_a_lone_attempt_before_a_judge_that_contradicts_itself_has_not_passed(mode, votes):
    for better in "AB":
        with ScriptedChatServer(always(better)) as server:
            judge = LlmAsJudge(config(server, mode=mode, votes=votes))
            verdict = await judge.judge(task("quality 2"), attempt(task("quality 2"), "quality 1"))
        assert (verdict.reward, verdict.passed, verdict.undecided) == (0.5, None, True)
        assert "the two orders disagree" in verdict.reason
    with ScriptedChatServer(always("tie")) as server:
        judge = LlmAsJudge(config(server, mode=mode, votes=votes))
        verdict = await judge.judge(task("quality 2"), attempt(task("quality 2"), "quality 1"))
    assert (verdict.reward, verdict.passed, verdict.undecided) == (0.5, True, False), "as good as the reference"


@each_row(
    ("said", "passed"),
    [("AB BA", None), ("AB BA AB", True), ("AB BA AA", None), ("AB AA AA", True), ("BA AA AA", False)],
)
async def test_votes_of_which_as_many_say_yes_as_no_are_undecided(said, passed):
    replies = iter(said.replace(" ", ""))
    script = lambda body: json.dumps({"reason": "", "better": next(replies)})  # noqa: E731
    with ScriptedChatServer(script) as server:
        judge = LlmAsJudge(config(server, mode="pairwise", votes=len(said.split()), max_concurrent=1))
        verdict = await judge.judge(task("quality 2"), attempt(task("quality 2"), "quality 1"))
    assert (verdict.passed, verdict.undecided) == (passed, passed is None)
