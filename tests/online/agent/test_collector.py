"""Conversations written down: of AgentScope agents, of functions, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astune.errors import OnlineError
from astune.online import DataCollector, read_only, shadow_safe
from astune.online.agent.conversation import Conversation
from astune.online.wire import RECORDS_PATH, ConversationRecord, WireError, read_wire
from astune.testing import ScriptedOnlineService

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_function_is_recorded_with_its_tools_and_feedback_comes_later(tmp_path: Path) -> None:
    @shadow_safe
    @read_only
    def look(what: str) -> str:
        return f"{what}: 7"

    async def agent(question: str) -> str:
        return look(question)

    with ScriptedOnlineService([]) as service:
        service.fail[RECORDS_PATH] = [503]
        async with DataCollector(service.url, path=tmp_path / "records.jsonl", spool=tmp_path / "spool") as collector:
            assert await collector.wrap(agent, model="other")("balance") == "balance: 7"
            conversation = service_id = next(iter(collector._last))
            collector.feedback(conversation, rewards={"task_completion": 0.8, "efficiency": 0.6}, rating=4)
            with pytest.raises(OnlineError, match="no conversation 'x' was recorded lately"):
                collector.feedback("x", thumb="up")
            with pytest.raises(WireError, match=r"'feedback.thumb': input should be 'up' or 'down'"):
                collector.feedback(conversation, thumb="yes")
    assert service.records[-1] == lines(tmp_path / "records.jsonl")[-1]
    first, second = lines(tmp_path / "records.jsonl")
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert first["messages"][1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"what": "balance"}'}
    assert first["model"] == "other" and first["conversation_id"] == service_id
    assert second == first | {
        "rewards": {"task_completion": 0.8, "efficiency": 0.6},
        "feedback": {"rating": 4},
    }
    assert collector.stats()["recorded"] == 2 and collector.stats()["sent"] == len(service.records)
    assert not any(collector.stats()[name] for name in ("waiting", "refused", "lost", "trouble"))
    assert list((tmp_path / "spool").iterdir()) == []


async def test_whatever_agent_is_recorded_by_hand_and_fields_may_be_left_out(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    messages = [TALK[0], {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "c", "content": "x"}, TALK[1]]
    path = tmp_path / "r.jsonl"
    less = {"thoughts": False, "tool_calls": False, "rewards": False, "user_feedback": False}
    async with DataCollector(path=path, collect_fields=less) as collector:
        thoughts = [{"step": 2, "content": "hm"}]
        given = {"messages": messages, "thoughts": thoughts, "rewards": {"a": 1.0}, "feedback": {"rating": 1}}
        collector.record(conversation_id="c", **given)
        with pytest.raises(WireError, match="'conversation_id' is missing"):
            collector.record(messages=messages)
    assert lines(path) == [{"conversation_id": "c", "messages": TALK, "tools": [], "thoughts": []}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collect_fields": {"thought": False}}, "collect_fields has no 'thought'. Did you mean 'thoughts'?"),
        ({"collect_fields": {"messages": False}}, "'messages' cannot be left out"),
        ({"collect_fields": {"rewards": 0}}, "'rewards' must be True or False, got 0"),
    ],
)
def test_a_collector_that_cannot_work_says_why(options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(OnlineError) as caught:
        DataCollector(**options)
    assert said in str(caught.value)


async def test_a_collector_with_nowhere_to_write_cannot_be_started() -> None:
    with pytest.raises(OnlineError, match="give the endpoint of the service, or the path of a file"):
        await DataCollector().start()


@pytest.mark.fault(
    "Online training",
    "a conversation cannot be recorded",
    "it is counted as lost, with the cause; production goes on",
)
async def test_a_conversation_that_goes_on_never_has_an_earlier_record_after_a_later_one(tmp_path: Path) -> None:
    with ScriptedOnlineService([]) as service:
        service.fail[RECORDS_PATH] = [503] * 10_000
        collector = DataCollector(service.url, spool=tmp_path)
        await collector.start()
        for number in range(3):
            collector.record(conversation_id="c", messages=TALK * (number + 1))
        collector.record(conversation_id="other", messages=TALK)
        await collector._jobs.join()
        await collector.stop(seconds=0.0)
        collector = DataCollector(service.url, spool=tmp_path)
        await collector.start()
        collector.record(conversation_id="c", messages=TALK * 4)
        await collector._jobs.join()
        service.fail[RECORDS_PATH].clear()
        await collector.stop()
    lengths = [len(record["messages"]) for record in service.records if record["conversation_id"] == "c"]
    assert lengths in ([8], [6, 8])  # one that was on its way when the last was added may arrive before it
    assert [record["conversation_id"] for record in service.records].count("other") == 1
    assert list(tmp_path.iterdir()) == [] and collector.stats()["sent"] == len(service.records)


async def test_a_record_that_cannot_be_written_is_lost_and_counted_and_production_goes_on(tmp_path: Path) -> None:
    async with DataCollector(path=tmp_path / "no" / "folder.jsonl") as collector:
        assert collector.wrap(lambda question: question)("x") == "x"
    assert collector.stats()["lost"] == 1 and collector.trouble.counts == {"FileNotFoundError": 1}


def test_a_conversation_with_calls_whose_results_are_gone_is_still_one() -> None:
    written = Conversation()
    written.result("gone", "f", "x")
    written.think("first")
    written.say("assistant", "a")
    written.say("assistant", [{"type": "text", "text": "b"}])
    written.end()
    written.say("assistant", "c")
    written.think("nothing follows")
    written.whole()
    body = {"conversation_id": "c", "messages": written.messages, "thoughts": written.thoughts}
    record = read_wire(ConversationRecord, body)
    assert [message.content for message in record.messages] == [
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "c",
    ]
    assert [thought.step for thought in record.thoughts] == [1]


class TestAgentScope:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("agentscope")

    async def test_each_reply_of_an_agent_is_recorded_with_all_that_came_before(self, tmp_path: Path) -> None:
        from tests.online.agent.agents import PROMPT, Bank, ask, call, clerk, texts

        def production(body: dict[str, Any]) -> Any:
            if body["messages"][-1]["role"] == "tool":
                return {"content": "Paid.", "reasoning_content": "It is done."}
            return call("pay", {"to": "ana", "amount": 3}, f"p{len(body['messages'])}")

        bank = Bank()
        with ScriptedOnlineService([]) as service:
            async with DataCollector(service.url) as collector:
                agent = collector.watch(clerk(ScriptedOnlineService(production), bank), user="ana")
                for question in ("Pay.", "Again."):
                    await ask(agent, question)
        first, second = service.records
        turn = ["assistant: pay", "tool: receipt 1 of ana", "assistant: Paid."]
        assert texts(first["messages"]) == [f"system: {PROMPT}", "user: Pay.", *turn]
        assert texts(second["messages"])[:6] == [*texts(first["messages"]), "user: Again."]
        assert second["messages"][:5] == first["messages"]
        assert first["conversation_id"] == second["conversation_id"]
        assert second["thoughts"] == [{"step": 2, "content": "It is done."}, {"step": 4, "content": "It is done."}]
        assert {tool["function"]["name"] for tool in first["tools"]} == {"pay", "balance"}
        assert (first["model"], first["user"]) == ("policy", "ana")

    async def test_collect_asks_and_returns_the_trajectory(self) -> None:
        from tests.online.agent.agents import Bank, call, clerk

        answers = [call("pay", {"to": "ana", "amount": 3}), "Paid."]
        collector = DataCollector(collect_fields={"messages": True, "thoughts": True})
        found = await collector.collect(
            clerk(ScriptedOnlineService(answers), Bank()),
            "Pay Ana.",
            user_feedback={"rating": 4, "comment": "exact"},
            rewards={"task_completion": 0.75, "efficiency": 0.5},
        )
        assert found["tool_calls"] == [
            {"tool": "pay", "args": {"to": "ana", "amount": 3}, "result": "receipt 1 of ana"}
        ]
        assert found["messages"][-1]["content"] == "Paid."
        assert found["feedback"] == {"rating": 4, "comment": "exact"} and found["total_reward"] == 1.25

    async def test_an_agent_is_recorded_and_played_again_at_once_and_shadows_are_not_recorded(self) -> None:
        from astune.online import SamplingRateStrategy, TrainingRunner
        from tests.online.agent.agents import Bank, ask, clerk

        options: dict[str, Any] = {"strategy": SamplingRateStrategy(1.0), "reward": lambda run: 1.0}
        with ScriptedOnlineService(lambda body: "Shadow.") as service:
            async with DataCollector(service.url) as collector, TrainingRunner(service.url, "m", **options) as runner:
                agent = runner.watch(collector.watch(clerk(ScriptedOnlineService(["Live."]), Bank())))
                await ask(agent, "Hi")
        assert [record["messages"][-1]["content"] for record in service.records] == ["Live."]
        assert len(service.feedback) == 1
