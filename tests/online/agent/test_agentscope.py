"""Shadows of real AgentScope agents, 2.x or 1.x, whichever is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("agentscope")

from astune.errors import OnlineError
from astune.online import SamplingRateStrategy, ShadowRun, TrainingRunner, collect_message_ids
from astune.testing import ScriptedOnlineService
from tests.online.agent.agents import MAJOR, PROMPT, Bank, ask, call, clerk, remembered, result, texts, toolkit_of

PAYS_3 = {"amount": 3, "to": "ana"}


def production(body: dict[str, Any]) -> Any:
    """Pays once for each question, then says so."""
    if body["messages"][-1]["role"] == "tool":
        return "Paid."
    return call("pay", PAYS_3, f"p{len(body['messages'])}")


def policy(body: dict[str, Any]) -> Any:
    """Looks, pays the same, pays it once more, and reports what it was told."""
    said = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    last = len(body["messages"]) - max(n for n, message in enumerate(body["messages"]) if message["role"] == "user")
    step = (last - 1) // 2
    calls = [call("balance", {}, "a"), call("pay", '{"to": "ana",  "amount": 3.0}', "b"), call("pay", PAYS_3, "c")]
    return calls[step] if step < 3 else " | ".join(said[-3:])


@pytest.fixture
def service() -> Iterator[ScriptedOnlineService]:
    with ScriptedOnlineService(policy) as started:
        yield started


@pytest.fixture
def live() -> ScriptedOnlineService:
    """What production's model is."""
    return ScriptedOnlineService(production)


def runner_of(service: ScriptedOnlineService, runs: list[ShadowRun], **options: Any) -> TrainingRunner:
    def score(run: ShadowRun) -> float:
        runs.append(run)
        return 1.0

    defaults = {"strategy": SamplingRateStrategy(1.0), "commit_interval": 0, "reward": score}
    return TrainingRunner(service.url, "policy", **(defaults | options))


@pytest.mark.fault(
    "Online training",
    "a shadow run calls a tool that writes",
    "the tool does not run: equal calls have production's result, others are refused",
)
async def test_shadows_of_an_agent_have_its_history_and_tools_and_write_nothing(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    bank, runs = Bank(), []
    agent = clerk(live, bank)
    async with runner_of(service, runs, repeat_time=4, sampling={"temperature": 0.5}) as runner:
        assert runner.watch(runner.watch(agent)) is agent
        first = await ask(agent, "Pay Ana 3.")
        assert first.get_text_content() == "Paid."
        held = [message.id for message in await remembered(agent)]
        await ask(agent, "And again.")
    assert [message.id for message in await remembered(agent)][: len(held)] == held
    assert agent.name == "clerk"
    assert bank.paid == [3.0, 3.0], "a tool that writes ran in a shadow"
    assert bank.looked == 8
    assert len(runs) == len(service.feedback) == 8
    receipts: dict[str, list[str]] = {}
    for run in runs:
        assert run.agent is not agent and run.agent.name == "clerk-shadow" and len(run.msg_ids) == 4
        assert [used["fate"] for used in run.tool_calls] == ["ran", "recorded", "refused"]
        seen, paid, refused = run.result.get_text_content().split(" | ")
        assert (seen, run.output.get_text_content()) == ("7", "Paid.")
        receipts.setdefault(run.task_id, []).append(f"{run.run_id}: {paid}")
        assert refused.startswith("The call of pay was not made")
    of_requests = [[f"{run}: receipt {number} of ana" for run in range(4)] for number in (1, 2)]
    assert sorted(map(sorted, receipts.values())) == of_requests
    requests = [texts(chat["messages"]) for chat in service.chats]
    begin = [f"system: {PROMPT}", "user: Pay Ana 3."]
    again = [*begin, "assistant: pay", "tool: receipt 1 of ana", "assistant: Paid.", "user: And again."]
    assert sorted(map(len, (request for request in requests if request[-1][:4] == "user"))) == [2] * 4 + [6] * 4
    assert begin in requests and again in requests
    assert {(chat["model"], chat["temperature"]) for chat in service.chats} == {("policy", 0.5)}
    assert runner.stats().rewarded == runner.stats().feedback_sent == 8


async def test_the_ids_of_a_models_replies_are_told_to_who_asked(live: ScriptedOnlineService) -> None:
    """Feedback needs them; the id of the agent's message is another. Two agents on one model answer at once."""
    first, second = clerk(live, Bank()), clerk(live, Bank())
    second.model = first.model

    async def told(agent: Any) -> list[str]:
        with collect_message_ids(agent) as ids:
            reply = await ask(agent, "Pay Ana 3.")
            assert reply.id not in ids
        await ask(agent, "And again.")
        return ids

    found = await asyncio.gather(told(first), told(second))
    assert [len(ids) for ids in found] == [2, 2] and len(live.chats) == 8
    assert len({*found[0], *found[1]} & {f"msg-{number}" for number in range(8)}) == 4
    first.model.client = None
    with pytest.raises(OnlineError, match=r"the model of 'clerk' \(OpenAIChatModel\) does not speak OpenAI's API"):
        collect_message_ids(first).__enter__()


async def test_writes_of_shadows_may_go_to_a_sandbox_made_for_each(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    bank, runs, made = Bank(), [], []

    def sandbox() -> Any:
        made.append([])
        mine = made[-1]

        def pay(to: str, amount: float) -> Any:
            """Pay, as a game."""
            mine.append(amount)
            return result("play money")

        return toolkit_of(pay)

    async with runner_of(service, runs, repeat_time=2, writes=sandbox) as runner:
        await ask(runner.watch(clerk(live, bank)), "Pay Ana 3.")
    assert bank.paid == [3.0] and made == [[3.0, 3.0]] * 2
    assert [run.result.get_text_content() for run in runs] == ["7 | play money | play money"] * 2


async def test_tools_may_be_named_as_read_only_and_writes_refused_always(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    bank, runs = Bank(), []
    async with runner_of(service, runs, writes="refuse") as runner:
        await ask(runner.watch(clerk(live, bank)), "Pay Ana 3.")
    assert runner.stats().tool_calls == {"ran": 1, "recorded": 0, "sandbox": 0, "refused": 2}
    async with runner_of(service, runs, read_only=["pay"]) as runner:
        await ask(runner.watch(clerk(live, bank)), "Pay Ana 3.")
    assert bank.paid == [3.0] * 4  # production twice, the shadow that was told it only reads twice


async def test_an_agent_of_its_own_class_is_cloned_by_a_function(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    kind = type(clerk(live, Bank()))

    class Own(kind):  # type: ignore[misc, valid-type]  # the class is that of the installed AgentScope
        pass

    bank, runs = Bank(), []

    def clone(model: Any) -> Any:
        made = clerk(live, bank, Own)
        made.model = model
        return made

    agent = clerk(live, bank, Own)
    async with runner_of(service, runs) as runner:
        with pytest.raises(OnlineError, match=r"Own is a class of its own, which cannot be cloned"):
            runner.watch(agent)
        await ask(runner.watch(agent, clone=clone), "Pay Ana 3.")
    assert bank.paid == [3.0] and type(runs[0].agent) is Own and runs[0].agent.name == "clerk-shadow"
    async with runner_of(service, runs) as careless:
        await ask(careless.watch(clerk(live, bank), clone=lambda model: agent), "Pay Ana 3.")
    assert careless.stats().failed == {"OnlineError": 1} and agent.name == "clerk"


async def test_what_is_no_agent_or_has_what_a_shadow_must_not_share_is_refused(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    runner = runner_of(service, [])
    with pytest.raises(OnlineError, match=r"got str; see wrap\(\) and observe\(\)"):
        runner.watch("agent")
    agent = clerk(live, Bank())
    if MAJOR == 2:
        from agentscope.middleware import MiddlewareBase

        class Logs(MiddlewareBase):
            async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
                return current_prompt + " Be brief."

        watched = clerk(live, Bank(), middlewares=[Logs()])
        with pytest.raises(OnlineError, match=r"'clerk' has middlewares \(Logs\): say which of them a shadow has too"):
            runner.watch(watched)
        async with runner:
            await ask(runner.watch(watched, middlewares=[Logs()]), "Pay Ana 3.")
        assert texts(service.chats[0]["messages"])[0] == f"system: {PROMPT} Be brief."
    else:
        with pytest.raises(OnlineError, match=r"is for AgentScope 2\.x"):
            runner.watch(agent, middlewares=[])
        from agentscope.plan import PlanNotebook

        with pytest.raises(OnlineError, match="'clerk' has a plan_notebook, which a shadow must not write to"):
            runner.watch(clerk(live, Bank(), plan_notebook=PlanNotebook()))


async def test_a_strategy_that_fails_or_a_service_that_is_away_does_not_touch_production(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    class Broken:
        def should_select(self, *_: Any) -> bool:
            raise RuntimeError("strategy")

    bank = Bank()
    async with runner_of(service, [], strategy=Broken()) as broken:
        assert (await ask(broken.watch(clerk(live, bank)), "Pay Ana 3.")).get_text_content() == "Paid."
    assert broken.stats().trouble == {"RuntimeError": 1}
    service.fail["/v1/chat/completions"] = [500]
    async with runner_of(service, []) as away:
        assert (await ask(away.watch(clerk(live, bank)), "Pay Ana 3.")).get_text_content() == "Paid."
    assert away.stats().failed == {"InternalServerError": 1} and bank.paid == [3.0, 3.0]


async def test_an_output_with_a_structure_is_asked_of_shadows_too(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    from pydantic import BaseModel

    class Sum(BaseModel):
        total: int

    name = "GenerateStructuredOutput" if MAJOR == 2 else "generate_response"

    def structured(body: dict[str, Any]) -> Any:
        return call(name, {"total": 7}) if body["messages"][-1]["role"] != "tool" else "Seven."

    live._answers = service._answers = structured
    bank, runs = Bank(), []
    agent = clerk(live, bank)
    async with runner_of(service, runs, repeat_time=2) as runner:
        runner.watch(agent)
        options = {"structured_schema": Sum} if MAJOR == 2 else {"structured_model": Sum}
        answer = await ask(agent, "Add.", **options)
    outputs = [answer, *(run.result for run in runs)]
    found = [output.structured_output if MAJOR == 2 else output.metadata for output in outputs]
    assert found == [{"total": 7}] * 3


@pytest.mark.skipif(MAJOR != 2, reason="1.x asks nobody")
async def test_a_reply_that_waits_for_a_permission_is_not_played_and_a_shadow_asks_nobody(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    from agentscope.permission import PermissionContext, PermissionMode
    from agentscope.state import AgentState

    bank = Bank()
    waits = clerk(live, bank, state=AgentState())
    async with runner_of(service, []) as runner:
        await ask(runner.watch(waits), "Pay Ana 3.")
    assert bank.paid == [] and runner.stats().skipped == {"it waits for somebody": 1}

    live._answers = lambda body: "I pay nothing."
    runs: list[ShadowRun] = []
    careful = AgentState(permission_context=PermissionContext(mode=PermissionMode.DEFAULT))
    async with runner_of(service, runs) as runner:
        await ask(runner.watch(clerk(live, bank, state=careful)), "Pay Ana 3.")
    assert bank.looked == 0 and "nobody can be asked" in runs[0].result.get_text_content()


@pytest.mark.skipif(MAJOR != 2, reason="events are those of 2.x")
async def test_who_reads_the_events_of_a_reply_reads_the_same_ones(
    service: ScriptedOnlineService, live: ScriptedOnlineService
) -> None:
    from agentscope.message import UserMsg

    async def kinds(agent: Any) -> list[str]:
        return [type(event).__name__ async for event in agent.reply_stream(UserMsg("user", "Pay Ana 3."))]

    plain = await kinds(clerk(live, Bank()))
    runs: list[ShadowRun] = []
    async with runner_of(service, runs) as runner:
        assert await kinds(runner.watch(clerk(live, Bank()))) == plain
    assert len(runs) == 1 and "ReplyEndEvent" in plain
