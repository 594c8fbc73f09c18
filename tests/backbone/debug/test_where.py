"""The lines of the user's code at which a suspended workflow stands."""

import asyncio
import threading
from types import FunctionType

import pytest

from astune.backbone.debug.stops.stepper import find_awaited_lines, find_thread_lines


async def ask(answer):
    reply = await answer
    return reply


async def solve(answer):
    return await ask(answer)


async def compare(answer):
    return await asyncio.gather(solve(answer), solve(answer))


@pytest.mark.parametrize(
    ("workflow", "lines"),
    [
        (solve, ["solve:  return await ask(answer)", "ask:  reply = await answer"]),
        (compare, ["compare:  return await asyncio.gather(solve(answer), solve(answer))"]),
    ],
)
async def test_the_lines_lead_from_the_workflow_to_what_it_waits_for(workflow, lines):
    answer = asyncio.get_running_loop().create_future()
    work = workflow(answer)
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    found = find_awaited_lines(work)
    assert [line.partition(" in ")[2] for line in found] == lines
    assert found[0].startswith(f"test_where.py:{workflow.__code__.co_firstlineno + 1} in ")
    answer.set_result(None)
    await task
    assert find_awaited_lines(work) == []


async def test_lines_that_are_not_the_users_are_left_out():
    def in_file(function, file):
        return FunctionType(function.__code__.replace(co_filename=file), globals())

    work = in_file(solve, asyncio.__file__)(asyncio.get_running_loop().create_future())
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    (line,) = find_awaited_lines(work)
    assert " in ask:" in line
    task.cancel()


def test_the_lines_of_a_workflow_in_a_thread_lead_to_what_it_waits_for():
    def outer():
        inner()

    def inner():
        begun.set()
        release.wait()

    begun, release = threading.Event(), threading.Event()
    thread = threading.Thread(target=outer, name="workflow debug/t1/0")
    thread.start()
    begun.wait()
    *_, first, second = find_thread_lines(thread.name)
    release.set()
    thread.join()
    assert " in outer:  inner()" in first and " in inner:" in second
    assert find_thread_lines(thread.name) == []


def test_what_is_no_coroutine_has_no_lines():
    assert find_awaited_lines(iter(())) == []
