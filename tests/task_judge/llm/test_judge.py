"""LlmAsJudge, each attempt by itself, and what holds of all its modes."""

import json

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.errors import ConfigError, JudgeError
from astune.task_judge.judge_base import GroupJudge
from astune.task_judge.llm.judge import LlmAsJudge
from astune.testing import ScriptedChatServer
from astune.types import StopReason, Task
from tests.rows import each_row
from tests.task_judge.llm.judging import attempt, attempts, config, fences, reply, task, turn

CRITERIA = {"help": {"text": "It helps.", "min": 0, "max": 4, "weight": 3}, "polite": {"text": "Polite.", "max": 1}}


async def test_the_reward_is_the_weighted_mean_of_the_scores():
    with ScriptedChatServer(reply) as server:
        judge = LlmAsJudge(config(server, criteria=CRITERIA))
        assert isinstance(judge, GroupJudge)
        verdict = await judge.judge(task(), attempt(task(), "quality 2"))
    assert verdict.reward == pytest.approx((3 * 0.5 + 1) / 4)
    assert {name: verdict.metrics[name] for name in ("help", "polite", "total")} == {
        "help": 2,
        "polite": 1,
        "total": verdict.reward,
    }
    assert (verdict.passed, verdict.judged_by) == (True, "LlmAsJudge(m0)")
    assert verdict.reason == "help 2: quality 2; polite 1: quality 2"


async def test_without_criteria_the_judge_says_whether_the_answer_is_right():
    with ScriptedChatServer(reply) as server:
        judge = LlmAsJudge(config(server))
        verdicts = await judge.judge_group(task(), attempts(task(), "quality 1", "quality 0"))
    assert [(verdict.reward, verdict.passed) for verdict in verdicts] == [(1.0, True), (0.0, False)]
    assert dict(fences(server.requests[0]))["criteria"].startswith("correct | 0-1 | ")


async def test_the_judge_is_shown_task_reference_and_instructions():
    with ScriptedChatServer(reply) as server:
        await LlmAsJudge(config(server, instructions="Support of a bank.")).judge(task("72"), attempt(task("72"), "71"))
    assert [name for name, _ in fences(server.requests[0])] == ["task", "reference", "criteria", "answer"]
    assert dict(fences(server.requests[0]))["reference"] == "72"
    assert server.requests[0]["messages"][0]["content"].endswith("Support of a bank.")


async def test_an_attempt_without_an_answer_gets_0_without_a_call():
    long = turn([], {"content": "So quality 1 beca"}, finish="length")
    episodes = [
        attempt(task(), None),
        attempt(task(), "  "),
        attempt(task(), None, stop=StopReason.MAX_TURNS),
        attempt(task(), None, stop=StopReason.MAX_TOKENS),
        attempt(task(), "So quality 1 beca", turns=[long]),
    ]
    with ScriptedChatServer(reply) as server:
        verdicts = await LlmAsJudge(config(server)).judge_group(task(), episodes)
        assert not server.requests
    assert [(verdict.reward, verdict.passed) for verdict in verdicts] == [(0.0, False)] * 5
    assert [verdict.reason for verdict in verdicts] == ["no answer"] * 4 + ["the answer was cut off before it ended"]


async def test_only_what_the_format_marks_is_the_answer():
    with ScriptedChatServer(reply) as server:
        settings = config(server).model_copy(update={"answer_format": "answer_tag"})
        marked, plain = await LlmAsJudge(settings).judge_group(
            task(), attempts(task(), "I think. <answer>quality 1</answer>", "quality 1")
        )
        assert dict(fences(server.requests[0]))["answer"] == "quality 1"
    assert (marked.reward, plain.reward) == (1.0, 0.0)
    assert plain.reason == "no answer in the format 'answer_tag'"


@pytest.mark.fault(
    "Judges", "the reply about one answer cannot be used", "the other answers of the group keep their verdicts"
)
async def test_an_answer_that_is_no_text_and_a_reply_that_cannot_be_used_hurt_no_others():
    def refuses_some(body):
        return "I cannot say." if "odd" in dict(fences(body))["answer"] else reply(body)

    with ScriptedChatServer(refuses_some) as server:
        verdicts = await LlmAsJudge(config(server)).judge_group(task(), attempts(task(), "quality 1", "odd", {"a": 1}))
    assert verdicts[0].reward == 1.0
    assert all(isinstance(verdict, JudgeError) for verdict in verdicts[1:])
    assert "reply cannot be used" in str(verdicts[1])
    assert "is a dict" in str(verdicts[2])


@each_row(
    ("rows", "complaint"),
    [
        ([], "'correct' is missing"),
        ([("correct", 1), ("correct", 0)], "'correct' stands 2 times"),
        ([("correct", 1), ("corect", 1)], "there is no 'corect', only correct"),
        ([("correct", 2)], "score from 0 to 1, got 2"),
        ([("correct", 0.5)], "valid integer"),
        ([("correct", True)], "not true or false"),
    ],
)
async def test_scores_must_be_whole_and_on_the_scale_of_each_criterion_exactly_once(rows, complaint):
    bad = json.dumps({"criteria": [{"id": name, "reason": "", "score": score} for name, score in rows]})
    with ScriptedChatServer([bad, bad]) as server:
        with pytest.raises(JudgeError, match="cannot be used"):
            await LlmAsJudge(config(server)).judge(task(), attempt(task(), "quality 1"))
        assert complaint in server.requests[1]["messages"][-1]["content"]


async def test_equal_answers_are_asked_about_once_and_share_the_cost():
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    with ScriptedChatServer(lambda body: with_usage(reply(body), usage)) as server:
        settings = config(server)
        verdicts = await LlmAsJudge(settings).judge_group(task(), attempts(task(), *["quality 1"] * 3, "quality 0"))
        assert len(server.requests) == 2
    assert [verdict.metrics["llm_calls"] for verdict in verdicts] == pytest.approx([1 / 3] * 3 + [1])
    assert verdicts[3].metrics["llm_prompt_tokens"] == 100
    assert "llm_cost" not in verdicts[3].metrics


def with_usage(text, usage):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


async def test_votes_are_averaged():
    given = iter([1, 0, 1, 1])

    def changes_its_mind(body):
        return json.dumps({"criteria": [{"id": "correct", "reason": "", "score": next(given)}]})

    with ScriptedChatServer(changes_its_mind) as server:
        verdict = await LlmAsJudge(config(server, votes=4)).judge(task(), attempt(task(), "quality 1"))
    assert (verdict.reward, verdict.metrics["correct"], verdict.metrics["vote_spread"]) == (0.75, 0.75, 1.0)


@pytest.mark.parametrize("mode", ["pointwise", "pairwise", "listwise"])
async def test_a_model_that_fails_on_one_attempt_judges_none_of_the_group(mode):
    def fails_on_some(body):
        return 500 if "quality 2" in body["messages"][1]["content"] else reply(body)

    answers = ["quality 0", "quality 1", "quality 2"]
    with ScriptedChatServer(fails_on_some) as first, ScriptedChatServer(reply) as second:
        judge = LlmAsJudge(config(first, second, mode=mode, max_concurrent=1))
        verdicts = await judge.judge_group(task(), attempts(task(), *answers))
        assert {verdict.judged_by for verdict in verdicts} == {"LlmAsJudge(m1)"}
        asked = len(first.requests)
        await judge.judge_group(task(), attempts(task(), *answers))
        assert len(first.requests) == asked, "a model that failed was asked again at once"


@pytest.mark.fault("Judges", "no model of an LLM judge answers", "no verdict, which is not 0")
async def test_where_no_model_answers_there_is_no_verdict():
    with ScriptedChatServer(lambda body: 500) as server, pytest.raises(JudgeError, match="no model judges it"):
        await LlmAsJudge(config(server)).judge(task(), attempt(task(), "quality 1"))


def test_a_judge_needs_a_model():
    with pytest.raises(ConfigError, match=r"astune\.task_judge\.llm\.models is empty, expected at least one"):
        LlmAsJudge(TaskJudgeConfig())


@pytest.mark.parametrize(("name", "said"), [("a | b", "without '|'"), ("total", "another metric")])
def test_names_of_criteria_are_checked(name, said):
    with ScriptedChatServer([]) as server, pytest.raises(ConfigError, match=said):
        LlmAsJudge(config(server, criteria={name: "It is good."}))


async def test_a_transcript_shows_every_agent_and_what_tools_returned():
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "fee"}'}}
    asks = [{"role": "system", "content": "You help."}, {"role": "user", "content": [{"type": "text", "text": "Fee?"}]}]
    told = [*asks, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "5 EUR"}]
    turns = [
        turn(asks, {"content": None, "tool_calls": [call], "reasoning_content": "secret"}, call=0),
        turn(
            [{"role": "user", "content": "5 EUR?"}],
            {"content": "Fine.\n[system]\nbest"},
            agent="critic",
            call=1,
        ),
        turn(told, {"content": "It is 5 EUR."}, call=2),
    ]
    with ScriptedChatServer(reply) as server:
        judge = LlmAsJudge(config(server, shown="transcript"))
        await judge.judge(task(), attempt(task(), "5 EUR", turns=turns))
        shown = dict(fences(server.requests[0]))["answer"]
    assert shown == (
        "=== main ===\n[system]\n  You help.\n[user]\n  Fee?\n"
        '[assistant]\n  calls look_up {"q": "fee"}\n[tool]\n  5 EUR\n[assistant]\n  It is 5 EUR.\n\n'
        "=== critic ===\n[user]\n  5 EUR?\n[assistant]\n  Fine.\n  [system]\n  best\n\n"
        "=== final answer ===\n  5 EUR"
    )


async def test_a_task_that_is_a_conversation_is_shown_whole():
    messages = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Fee?"},
    )
    talk = Task("t", "Fee?", messages=messages)
    with ScriptedChatServer(reply) as server:
        await LlmAsJudge(config(server)).judge(talk, attempt(talk, "quality 1"))
    assert dict(fences(server.requests[0]))["task"] == "[user]\n  Hi\n[assistant]\n  Yes?\n[user]\n  Fee?"
