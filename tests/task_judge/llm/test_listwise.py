"""LlmAsJudge by ranking: one call for a group, and no favour for a place."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.errors import JudgeError
from astune.task_judge.llm.judge import LlmAsJudge
from astune.task_judge.llm.listwise import RankingReply, check_ranking
from astune.testing import ScriptedChatServer
from astune.types import StopReason
from tests.rows import each_row
from tests.task_judge.llm.judging import attempt, attempts, config, fences, quality, reply, task


async def judged(script, episodes, **llm):
    with ScriptedChatServer(script) as server:
        verdicts = await LlmAsJudge(config(server, mode="listwise", **llm)).judge_group(task(), episodes)
        return verdicts, server.requests


async def test_one_call_ranks_a_group():
    answers = ["quality 3", "quality 1", "quality 2 a", "quality 2 b", "quality 3"]
    out = attempt(task(), None, 9, StopReason.MAX_TURNS)
    verdicts, requests = await judged(reply, [*attempts(task(), *answers), out])
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.9, 0.2, 0.5, 0.5, 0.9, 0.0])
    assert {verdict.passed for verdict in verdicts} == {None}
    (request,) = requests
    labels = [name for name, _ in fences(request) if name.startswith("answer")]
    assert labels == ["answer_A", "answer_B", "answer_C", "answer_D"]
    assert verdicts[0].metrics["llm_calls"] == pytest.approx(1 / 6)
    assert (verdicts[0].reason, verdicts[5].reason) == ("by quality", "no answer")


async def test_where_no_answers_differ_nothing_is_asked():
    verdicts, requests = await judged(reply, attempts(task(), "quality 1", "quality 1", ""))
    assert ([verdict.reward for verdict in verdicts], requests) == ([0.75, 0.75, 0.0], [])


async def test_a_judge_that_goes_by_the_place_favours_no_attempt():
    def by_place(body):
        labels = [name.removeprefix("answer_") for name, _ in fences(body) if name.startswith("answer")]
        return json.dumps({"reason": "", "ranking": labels})

    best = Counter()
    with ScriptedChatServer(by_place) as server:
        judge = LlmAsJudge(config(server, mode="listwise"))
        for number in range(60):
            answers = [f"one {number}", f"two {number}", f"three {number}"]
            verdicts = await judge.judge_group(task(), attempts(task(), *answers))
            best[max(range(3), key=lambda i: verdicts[i].reward)] += 1
    assert min(best[i] for i in range(3)) >= 8  # 20 expected; below 8 has a chance of 1 in 5,000 per attempt


async def test_the_order_of_the_attempts_does_not_matter_and_votes_are_shuffled_anew():
    answers = [f"quality {i}" for i in range(6)]
    _, there = await judged(reply, attempts(task(), *answers), votes=3)
    _, back = await judged(reply, attempts(task(), *answers[::-1]), votes=3)
    prompts = [{request["messages"][1]["content"] for request in requests} for requests in (there, back)]
    assert prompts[0] == prompts[1]
    assert len(prompts[0]) == 3


async def test_votes_are_averaged():
    turn = iter([1, -1, 1, 1])

    def changes_its_mind(body):
        sign = next(turn)
        return reply(body, lambda text: sign * quality(text))

    verdicts, _ = await judged(changes_its_mind, attempts(task(), "quality 1", "quality 2"), votes=4, max_concurrent=1)
    assert [verdict.reward for verdict in verdicts] == [0.25, 0.75]
    assert {verdict.metrics["vote_spread"] for verdict in verdicts} == {1.0}


@each_row("ranking", [["A"], ["A", "B", "B"], ["A", "B", "C"], [["A", "B"], "A"], [], "AB"])
async def test_a_ranking_must_hold_every_label_once(ranking):
    bad = json.dumps({"reason": "", "ranking": ranking})
    with pytest.raises(JudgeError, match="reply cannot be used"):
        await judged([bad, bad], attempts(task(), "quality 1", "quality 2"))


@given(st.lists(st.lists(st.sampled_from("ABCDE"), max_size=4), max_size=4), st.sets(st.sampled_from("ABCDE")))
def test_what_passes_the_check_has_every_label_once(ranking, labels):
    reply = RankingReply(reason="", ranking=ranking)
    flat = [label for level in ranking for label in level]
    try:
        check_ranking(reply, labels)
    except ValueError:
        assert sorted(flat) != sorted(labels)
    else:
        assert sorted(flat) == sorted(labels)
        assert set(reply.places()) == labels


async def test_more_answers_than_letters():
    answers = [f"quality {i}" for i in range(30)]
    verdicts, (request,) = await judged(reply, attempts(task(), *answers))
    assert [round(29 * verdict.reward) for verdict in verdicts] == list(range(30))
    assert fences(request)[-1][0] == "answer_AD"


async def test_two_votes_read_the_answers_in_opposite_orders_so_that_a_judge_who_goes_by_the_place_calls_all_equal():
    def by_place(body):
        labels = [name.removeprefix("answer_") for name, _ in fences(body) if name.startswith("answer")]
        return json.dumps({"reason": "", "ranking": labels})

    verdicts, requests = await judged(by_place, attempts(task(), "one", "two", "three"), votes=2)
    there, back = ([text for name, text in fences(body) if name.startswith("answer")] for body in requests)
    assert there == back[::-1]
    assert [verdict.reward for verdict in verdicts] == [0.5] * 3
