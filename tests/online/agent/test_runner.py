"""Shadow runs of plain functions: what is played, what is said of it, and that production never notices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from astune.errors import OnlineError
from astune.online import (
    ExplicitMarkingStrategy,
    RecordedTool,
    RequestContext,
    SamplingRateStrategy,
    ShadowRun,
    TrainingRunner,
    mark,
    read_only,
    shadow_run,
    shadow_safe,
)
from astune.online.wire import COMMIT_PATH, FEEDBACK_PATH
from astune.testing import ScriptedOnlineService
from tests.rows import each_row

EVERY = SamplingRateStrategy(1.0)


async def ask(client: Any, question: str) -> str:
    """An agent of one call."""
    if client is None:
        return f"production says: {question}"
    reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": question}])
    return str(reply.choices[0].message.content)


def one(run: ShadowRun) -> float:
    return 1.0


def adds_up(runner: TrainingRunner) -> bool:
    """Whether every run is counted once."""
    stats = runner.stats()
    ended = [stats.rewarded, stats.unrewarded, stats.without_replies, stats.timed_out, *stats.failed.values()]
    return stats.runs == sum(ended) + stats.queued + stats.under_way + stats.unplayed


def runner_of(service: ScriptedOnlineService, **options: Any) -> TrainingRunner:
    return TrainingRunner(service.url, "policy", **({"strategy": EVERY, "reward": one, "commit_interval": 0} | options))


async def test_a_request_is_played_again_and_its_reward_is_sent_with_the_ids_of_its_replies() -> None:
    def score(run: ShadowRun) -> float:
        assert (run.inputs, run.output, run.result) == ({"question": "2+2?"}, "production says: 2+2?", "4")
        return 0.25 if run.run_id == "0" else 0.75

    with ScriptedOnlineService(lambda body: "4", token="secret") as service:
        async with runner_of(service, repeat_time=2, reward=score, token="secret") as runner:
            assert await runner.wrap(ask, client=None)("2+2?") == "production says: 2+2?"
    by_run = {body["run_id"]: body for body in service.feedback}
    assert {run: body["reward"] for run, body in by_run.items()} == {"0": 0.25, "1": 0.75}
    assert len({body["task_id"] for body in service.feedback}) == 1
    assert sorted(body["msg_ids"][0] for body in service.feedback) == ["msg-0", "msg-1"]
    assert {(headers["x-astune-task"], headers["x-astune-run"]) for headers in service.headers} == {
        (body["task_id"], body["run_id"]) for body in service.feedback
    }
    assert service.commits == [{}]
    stats = runner.stats()
    assert (stats.requests, stats.runs, stats.rewarded, stats.feedback_sent, stats.commits) == (1, 2, 2, 2, 1)
    assert str(stats) == "1 requests, 1 selected, 2 runs, 2 rewarded, 2 rewards sent, 1 commits"


@pytest.mark.parametrize("stream", [False, True])
async def test_every_reply_of_a_run_is_named_also_one_that_is_streamed(stream: bool) -> None:
    async def two_calls(client: Any) -> int:
        for _ in range(2):
            reply = await client.chat.completions.create(model="policy", messages=[], stream=stream)
            if stream:
                assert [chunk.choices[0].delta.content async for chunk in reply] == ["x"]
        return 2

    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service) as runner:
            runner.observe("inputs", "output", two_calls)
    assert service.feedback[0]["msg_ids"] == ["msg-0", "msg-1"]


def test_a_program_without_an_event_loop_has_shadow_runs_too() -> None:
    def ask_sync(client: openai.OpenAI | None, question: str) -> str:
        if client is None:
            return "production"
        assert isinstance(client, openai.OpenAI)
        reply = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": question}])
        return str(reply.choices[0].message.content)

    with ScriptedOnlineService(lambda body: "x") as service:
        with runner_of(service, reward=lambda run: {"right": 0.5, "short": 0.25}) as runner:
            answers = []
            asked = runner.wrap(ask_sync, client=None)
            threads = [threading.Thread(target=lambda: answers.append(asked("?"))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert answers == ["production"] * 4
    assert [body["rewards"] for body in service.feedback] == [{"right": 0.5, "short": 0.25}] * 4
    assert runner.stats().rewarded == 4


@pytest.mark.fault(
    "Online training",
    "a selection strategy, a reward function or an agent raises in a shadow run",
    "it is counted by its cause; production has answered",
)
async def test_what_goes_wrong_is_counted_by_cause_and_production_answers() -> None:
    class Broken:
        def should_select(self, *_: Any) -> bool:
            raise KeyError("strategy")

    class NoCopy:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    async def ask_nothing(client: Any, kind: str) -> str:
        if client is None:
            return kind
        if kind == "raises":
            raise LookupError("the agent")
        return "without asking"

    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service) as runner:
            agent = runner.wrap(ask_nothing, client=None)
            assert [await agent(kind) for kind in ("raises", "silent")] == ["raises", "silent"]
            held = NoCopy()
            assert await agent(held) is held
        async with runner_of(service, strategy=Broken()) as broken:
            assert await broken.wrap(ask_nothing, client=None)("x") == "x"
        async with runner_of(service, reward=lambda run: "good") as rewarded:
            assert await rewarded.wrap(ask, client=None)("x")
        async with runner_of(service, reward=lambda run: None) as unrewarded:
            assert await unrewarded.wrap(ask, client=None)("x")
    stats = runner.stats()
    assert (stats.failed, stats.without_replies, stats.trouble) == ({"LookupError": 1}, 1, {"TypeError": 1})
    assert broken.stats().trouble == {"KeyError": 1}
    assert rewarded.stats().failed == {"OnlineError": 1}
    assert unrewarded.stats().unrewarded == 1
    assert all(adds_up(one) for one in (runner, broken, rewarded, unrewarded))
    assert service.feedback == [] and service.commits == []


async def test_production_that_raises_raises_and_is_not_played_again() -> None:
    async def fails(client: Any) -> str:
        raise ZeroDivisionError

    with ScriptedOnlineService([]) as service:
        async with runner_of(service) as runner:
            with pytest.raises(ZeroDivisionError):
                await runner.wrap(fails, client=None)()
    assert runner.stats().requests == 0


@pytest.mark.fault(
    "Online training",
    "more requests are selected than shadow runs can be played",
    "the queue is bounded: a request that finds no room is dropped whole, and counted",
)
async def test_a_request_that_finds_no_room_is_dropped_whole_and_what_stop_leaves_is_counted() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def waits(client: Any) -> None:
        begun.set()
        await go_on.wait()

    with ScriptedOnlineService([]) as service:
        runner = runner_of(service, pool_size=1, capacity=5, repeat_time=2)
        runner.observe("before", "start", waits)
        await runner.start()
        runner.observe("a", "b", waits)
        await begun.wait()  # one is under way, one waits
        for _ in range(4):
            runner.observe("a", "b", waits)
        assert (runner.stats().queued, runner.stats().dropped) == (5, 3) and adds_up(runner)
        await runner.stop(seconds=0.0)
        runner.observe("after", "stop", waits)
    stats = runner.stats()
    assert (stats.runs, stats.unplayed, stats.dropped, stats.under_way, stats.queued) == (6, 6, 4, 0, 0)
    assert adds_up(runner)


@pytest.mark.fault(
    "Online training",
    "a shadow run hangs, or blocks its thread",
    "it ends at its time limit, is counted, and earns nothing",
)
async def test_a_run_ends_at_its_time_limit_even_if_it_takes_its_cancellation_for_something_else() -> None:
    async def stubborn(client: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "interrupted by the user, it seems"
        return "never"

    def blocks(client: Any) -> str:
        released.wait()
        return "late"

    released = threading.Event()
    with ScriptedOnlineService([]) as service:
        async with runner_of(service, timeout=0.01) as runner:
            runner.observe("a", "b", stubborn)
            runner.observe("a", "b", blocks)
        released.set()
    assert (runner.stats().timed_out, runner.stats().rewarded) == (2, 0) and adds_up(runner)


async def test_stop_ends_a_run_that_takes_its_cancellation_for_something_else() -> None:
    begun = asyncio.Event()

    async def stubborn(client: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    with ScriptedOnlineService([]) as service:
        runner = runner_of(service, pool_size=1)
        await runner.start()
        runner.observe("a", "b", stubborn)
        await begun.wait()
        tasks = list(runner._session.tasks)
        with anyio.fail_after(60):
            await runner.stop(seconds=0.0)
    assert all(task.done() for task in tasks)
    assert runner.stats().unplayed == 1 and adds_up(runner)


@pytest.mark.fault(
    "Online training",
    "the online service is away when rewards are sent",
    "they are sent again until it acknowledges them",
)
async def test_rewards_and_commits_survive_a_service_that_is_away() -> None:
    with ScriptedOnlineService(lambda body: "x") as service:
        service.fail[FEEDBACK_PATH] = [503, 500, 429]
        service.fail[COMMIT_PATH] = [503]
        async with runner_of(service) as runner:
            for number in range(3):
                await runner.wrap(ask, client=None)(str(number))
    assert len(service.feedback) == 3 and service.commits == []
    stats = runner.stats()
    assert (stats.feedback_sent, stats.commits_failed, stats.feedback_lost) == (3, {"ServiceAway": 1}, 0)


async def test_what_the_attempts_at_a_task_earned_is_sent_once_all_have_ended(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    def request(waits: bool) -> Callable[[Any], Any]:
        begun = iter(range(2))

        async def attempt(client: Any) -> None:
            number = next(begun)
            await client.chat.completions.create(model="policy", messages=[])
            if waits and number:
                await go_on.wait()

        return attempt

    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service, repeat_time=2, spool=tmp_path) as runner:
            runner.observe("a", "b", request(waits=True))
            while not runner.stats().rewarded:
                await anyio.lowlevel.checkpoint()
            runner.observe("c", "d", request(waits=False))
            while runner.stats().rewarded < 3 or len(service.feedback) < 2:
                await anyio.lowlevel.checkpoint()
            first, second = service.feedback[:2]
            assert first["task_id"] == second["task_id"], "of the other task one attempt is under way"
            while len(list(tmp_path.iterdir())) > 1:
                await anyio.lowlevel.checkpoint()
            assert runner.stats().feedback_waiting == 1, "on disk, until the other attempt has ended"
            go_on.set()
    assert len(service.feedback) == 4 and service.feedback[2]["task_id"] == service.feedback[3]["task_id"]
    assert list(tmp_path.iterdir()) == []


async def test_what_one_attempt_earned_is_not_held_for_others_that_stop_ends() -> None:
    begun = iter(range(2))

    async def attempt(client: Any) -> None:
        number = next(begun)
        await client.chat.completions.create(model="policy", messages=[])
        if number:
            await asyncio.Event().wait()

    with ScriptedOnlineService(lambda body: "x") as service:
        runner = runner_of(service, repeat_time=2)
        await runner.start()
        runner.observe("a", "b", attempt)
        while not runner.stats().rewarded:
            await anyio.lowlevel.checkpoint()
        await runner.stop(seconds=0.0)
    stats = runner.stats()
    assert (stats.feedback_waiting, stats.feedback_sent + stats.feedback_lost, stats.unplayed) == (0, 1, 1)
    assert adds_up(runner)


@pytest.mark.fault(
    "Online training",
    "an agent's process ends with rewards that were not sent",
    "they are in its spool, and the next one sends them",
)
async def test_rewards_that_one_runner_could_not_send_are_sent_by_the_next(tmp_path: Path) -> None:
    with ScriptedOnlineService(lambda body: "x") as service:
        service.fail[FEEDBACK_PATH] = [503] * 10_000
        runner = runner_of(service, spool=tmp_path / "spool", reward=lambda run: 0.5)
        await runner.start()
        await runner.wrap(ask, client=None)("x")
        while not runner.stats().rewarded:
            await anyio.lowlevel.checkpoint()
        await runner.stop(seconds=0.0)
        assert (runner.stats().feedback_lost, len(list((tmp_path / "spool").iterdir()))) == (0, 1)
        (tmp_path / "spool" / "000000000000-broken.json").write_text("{")
        service.fail[FEEDBACK_PATH].clear()
        async with runner_of(service, spool=tmp_path / "spool") as later:
            pass
    assert [body["reward"] for body in service.feedback] == [0.5] and later.stats().feedback_sent == 1
    assert [file.name for file in (tmp_path / "spool").iterdir()] == ["000000000000-broken.json"]


class Account:
    """Tools of which one writes and counts its calls."""

    def __init__(self) -> None:
        self.paid: list[float] = []
        self.looked = 0
        self.pay = shadow_safe(self._pay)
        self.balance = shadow_safe(self._balance)

    def _pay(self, to: str, amount: float = 1.0) -> str:
        self.paid.append(amount)
        return f"receipt {len(self.paid)}"

    @read_only
    def _balance(self) -> int:
        self.looked += 1
        return 7

    def agent(self, *amounts: float) -> Callable[..., Any]:
        async def act(client: Any) -> list[str]:
            if client is not None:
                await client.chat.completions.create(model="policy", messages=[])
            self.balance()
            return [self.pay("ana", amount=amount) for amount in ((3.0,) if client is None else amounts)]

        return act


async def played(account: Account, *amounts: float, **options: Any) -> list[ShadowRun]:
    runs: list[ShadowRun] = []
    with ScriptedOnlineService(lambda body: "x") as service:
        options = {"reward": lambda run: runs.append(run) or 1.0, "repeat_time": 4} | options
        async with runner_of(service, **options) as runner:
            agent = runner.wrap(account.agent(*amounts), client=None)
            assert await agent() == ["receipt 1"]
    assert account.paid == [3.0], "a tool that writes ran in a shadow"
    assert account.looked == 5
    assert runner.stats().rewarded == 4
    assert sum(runner.stats().tool_calls.values()) == 4 * (1 + len(amounts))
    return runs


@pytest.mark.fault(
    "Online training",
    "a shadow run calls a tool that writes",
    "the tool does not run: equal calls have production's result, others are refused",
)
async def test_a_tool_that_writes_runs_once_and_shadows_have_its_result_where_the_arguments_are_equal() -> None:
    runs = await played(Account(), 3, 3.0, 4.0)
    for run in runs:
        first, second, third = run.result
        assert first == "receipt 1"
        assert second.startswith("The call of _pay was not made") and third == second
        assert [call["fate"] for call in run.tool_calls] == ["ran", "recorded", "refused", "refused"]


async def test_a_tool_of_a_class_and_one_with_defaults_have_equal_arguments_where_they_mean_the_same() -> None:
    class Till:
        def __init__(self) -> None:
            self.taken: list[float] = []

        @shadow_safe
        def take(self, amount: float, currency: str = "EUR") -> str:
            self.taken.append(amount)
            return f"{amount} {currency}"

    till, results = Till(), []

    async def act(client: Any) -> str:
        if client is None:
            return till.take(2)
        await client.chat.completions.create(model="policy", messages=[])
        return till.take(amount=2.0, currency="EUR")

    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service, reward=lambda run: results.append(run.result) or 1.0) as runner:
            await runner.wrap(act, client=None)()
    assert results == ["2 EUR"] and till.taken == [2]


async def test_writes_may_be_refused_always_or_go_to_a_sandbox() -> None:
    refused = await played(Account(), 3.0, writes="refuse")
    assert all(run.tool_calls[1]["fate"] == "refused" for run in refused)
    made: list[list[Any]] = []

    def sandbox() -> dict[str, Any]:
        made.append([])
        return {"_pay": lambda to, amount: made[-1].append(amount) or f"sandbox {amount}"}

    in_sandbox = await played(Account(), 3.0, 5.0, writes=sandbox)
    assert all(run.result == ["sandbox 3.0", "sandbox 5.0"] for run in in_sandbox)
    assert len(made) == 4


async def test_a_thread_of_a_shadow_run_knows_that_it_is_one() -> None:
    account = Account()

    def act(client: Any) -> bool:
        if client is not None:
            client.chat.completions.create(model="policy", messages=[])
        account.pay("ana")
        return shadow_run() is not None

    results = []
    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service, reward=lambda run: results.append(run.result) or 1.0) as runner:
            assert await anyio.to_thread.run_sync(runner.wrap(act, client=None)) is False
    assert results == [True] and account.paid == [1.0]


async def test_only_marked_requests_are_taken_by_explicit_marking() -> None:
    taken: list[RequestContext] = []

    def score(run: ShadowRun) -> float:
        taken.append(run.context)
        return 1.0

    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service, strategy=ExplicitMarkingStrategy(), reward=score, pool_size=1) as runner:
            agent = runner.wrap(ask, client=None)
            await agent("unmarked")
            mark("high-quality", "user-feedback")
            await agent("marked")
            await agent("unmarked again")
            with mark("billing", task_id="ticket-81"):
                await agent("first")
                await asyncio.gather(agent("second"), asyncio.create_task(agent("third")))
            await agent("after")
        async with runner_of(service, strategy=ExplicitMarkingStrategy("billing")) as other:
            mark("chat")
            await other.wrap(ask, client=None)("not this")
    assert [context.labels for context in taken] == [("high-quality", "user-feedback")] + [("billing",)] * 3
    assert [body["task_id"] for body in service.feedback[1:]] == ["ticket-81"] * 3
    assert other.stats().selected == 0


def test_a_seed_selects_the_same_requests_and_the_rate_is_kept() -> None:
    def choices(seed: int | None) -> list[bool]:
        strategy = SamplingRateStrategy(0.1, seed)
        return [strategy.should_select(None, None, None, RequestContext()) for _ in range(2000)]

    assert choices(1) == choices(1) != choices(2)
    assert 150 < sum(choices(1)) < 250


@each_row(
    ("options", "said"),
    [
        ({"repeat_time": 0}, "repeat_time must be a whole number of at least 1, got 0"),
        ({"capacity": 2, "repeat_time": 3}, "repeat_time 3 is above capacity 2"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"writes": "record"}, "writes='record'; expected 'recorded', 'refuse'"),
        ({"reward": 1.0}, "reward must be a function of the shadow run"),
        ({"endpoint": "localhost:8010"}, "endpoint 'localhost:8010' is no address"),
        ({"endpoint": "http://localhost:8010/v1"}, "ends with /v1"),
    ],
)
def test_a_runner_that_cannot_work_says_why(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OnlineError, match=said):
        TrainingRunner(**({"endpoint": "http://h", "model": "m", "reward": one} | options))


def test_a_rate_is_from_0_to_1() -> None:
    with pytest.raises(OnlineError, match="rate must be a number from 0 to 1, got 10"):
        SamplingRateStrategy(10)


async def test_what_a_run_was_told_of_tool_calls_by_hand_answers_them() -> None:
    account = Account()

    async def again(client: Any) -> str:
        await client.chat.completions.create(model="policy", messages=[])
        return account.pay("ana", amount=2.0)

    results = []
    with ScriptedOnlineService(lambda body: "x") as service:
        async with runner_of(service, reward=lambda run: results.append(run.result) or 1.0) as runner:
            call = RecordedTool("_pay", '{"amount": 2.0, "to": "ana"}', "paid")
            runner.observe("in", "out", again, tool_calls=[call])
    assert results == ["paid"] and account.paid == []
