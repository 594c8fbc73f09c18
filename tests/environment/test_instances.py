"""Whatever is asked in whatever order: no instance is lost, and each is closed once, after what was under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.environment.instances import Instances
from astune.environment.metrics import Metrics
from astune.environment.protocol import CallError, CreateRequest, ServiceReply, StepRequest
from astune.environment.threads import Workers
from tests.environment.rooms import Rooms

LIMIT = 3
IDS = st.sampled_from(["1", "2", "3", "4"])
CALLS = st.one_of(
    st.tuples(st.just("create"), IDS, st.sampled_from(["a", "b", "burnt", "mute", "nowhere", "clings"])),
    st.tuples(st.just("step"), IDS, st.sampled_from(["x", "y", "done", "raise", "nan"])),
    st.tuples(st.just("evaluate"), IDS, st.just("")),
    st.tuples(st.just("release"), IDS, st.just("")),
    st.tuples(st.just("expire"), st.just(""), st.just("")),
)
Call = tuple[str, str, str]


@contextmanager
def service(ttl: float = 0.0) -> Iterator[tuple[Instances, Metrics, Rooms]]:
    """With a time to live of 0 `expire` closes whatever is not in use."""
    rooms, metrics = Rooms(), Metrics(LIMIT)
    yield Instances([rooms], metrics, max_instances=LIMIT, ttl=ttl, workers=4), metrics, rooms
    assert [room.closes for room in rooms.made if room.task_id != "mute"] == [1] * metrics.created
    assert all(room.closes == 1 and not room.collided for room in rooms.made)
    assert metrics.live == 0 and rooms.closes == 1


async def make(instances: Instances, call: Call) -> str:
    """The code of the reply, "ok" for one without error."""
    name, instance_id, more = call
    try:
        if name == "create":
            reply = await instances.create(CreateRequest(task_id=more, instance_id=instance_id))
        elif name == "step":
            message = {"content": more}
            reply = await instances.step(StepRequest(instance_id=instance_id, messages=message), None)
        elif name == "evaluate":
            reply = await instances.evaluate(instance_id)
        elif name == "release":
            reply = await instances.release(instance_id)
        else:
            await asyncio.sleep(0.0001)  # so that the clock has moved on since the last call
            instances.expire()
            await settled(instances)
            reply = ServiceReply(200, b"")
    except CallError as error:
        return error.code
    if reply.status != 200:
        return "environment_failed"
    return "no" if reply.body.endswith(b'"data":false}') else "ok"


async def settled(instances: Instances) -> None:
    while instances._closings:
        await asyncio.wait(instances._closings)  # which, cancelled, leaves them alone


@dataclass
class Model:
    """What the service ought to answer to calls that come one after the other."""

    task: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def answer(self, call: Call) -> str:
        name, one, more = call
        if name == "create":
            return self._create(one, more)
        if name == "expire":
            self.task.clear()
            return "ok"
        if name == "release":
            return "no" if self.task.pop(one, None) is None else "ok"
        if one not in self.task:
            return "unknown_instance"
        if name == "evaluate":
            return "ok"
        if one in self.done:
            return "terminated"
        if more == "done":
            self.done.add(one)
        return "environment_failed" if more in ("raise", "nan") else "ok"

    def _create(self, one: str, task: str) -> str:
        if one in self.task:
            return "ok" if self.task[one] == task else "instance_exists"
        if len(self.task) == LIMIT:
            return "full"
        if task in ("burnt", "mute"):
            return "environment_failed"
        if task == "nowhere":
            return "unknown_task"
        self.task[one] = task
        self.done.discard(one)
        return "ok"


@settings(max_examples=60)
@given(st.lists(CALLS, max_size=25))
def test_calls_one_after_the_other_are_answered_as_the_model_says(calls: Sequence[Call]) -> None:
    async def play() -> None:
        with service() as (instances, metrics, _):
            model = Model()
            for call in calls:
                assert await make(instances, call) == model.answer(call), call
                assert metrics.live == len(model.task)
            await instances.close()

    asyncio.run(play())


@settings(max_examples=60)
@given(st.lists(st.lists(CALLS, min_size=2, max_size=8), max_size=6))
def test_calls_at_the_same_time_lose_no_instance(batches: Sequence[Sequence[Call]]) -> None:
    async def play() -> None:
        with service() as (instances, metrics, rooms):
            for batch in batches:
                await asyncio.gather(*(make(instances, call) for call in batch))
                await settled(instances)
                there = [room for room in rooms.made if not room.closes]
                assert metrics.live == len(instances._entries) == len(there) <= LIMIT
            await instances.close()

    asyncio.run(play())


@settings(max_examples=40)
@given(st.lists(CALLS, min_size=2, max_size=12), st.integers(0, 20))
def test_a_service_that_ends_in_the_middle_closes_all(calls: Sequence[Call], turns: int) -> None:
    """Calls are cancelled, as uvicorn does it, after a few turns of the loop."""

    async def play() -> None:
        with service() as (instances, metrics, rooms):
            tasks = [asyncio.ensure_future(make(instances, call)) for call in calls]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await instances.close()
            assert metrics.live == 0 and all(room.closes == 1 for room in rooms.made)

    asyncio.run(play())


async def test_what_is_in_use_does_not_expire() -> None:
    with service() as (instances, metrics, rooms):
        await make(instances, ("create", "1", "a"))
        step = asyncio.ensure_future(make(instances, ("step", "1", "wait")))
        assert await asyncio.to_thread(rooms.entered.wait, 60)
        await make(instances, ("expire", "", ""))
        assert metrics.expired == 0
        rooms.gate.set()
        assert await step == "ok"
        await make(instances, ("expire", "", ""))
        assert metrics.expired == 1
        await instances.close()


async def test_workers_run_as_much_at_once_as_there_are_threads() -> None:
    workers, rooms, both = Workers(2), Rooms(), threading.Barrier(3)
    order: list[str] = []

    def wait() -> None:
        both.wait(60)
        rooms.gate.wait(60)
        order.append("first")

    waiting = [asyncio.ensure_future(workers.run(wait)) for _ in range(2)]
    third = asyncio.ensure_future(workers.run(lambda: order.append("third")))
    await asyncio.to_thread(both.wait, 60)
    assert order == []
    rooms.gate.set()
    await asyncio.gather(*waiting, third)
    assert order[0] == "first"
    workers.stop()


async def test_workers_that_were_stopped_take_nothing_and_keep_nobody_waiting() -> None:
    workers, rooms = Workers(1), Rooms()
    begun = threading.Event()
    running = asyncio.ensure_future(workers.run(lambda: begun.set() or rooms.gate.wait(60)))
    assert await asyncio.to_thread(begun.wait, 60)
    workers.stop()
    with pytest.raises(TimeoutError):
        await running
    with pytest.raises(TimeoutError):
        await workers.run(lambda: None)
    rooms.gate.set()
