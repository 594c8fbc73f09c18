"""Many episodes over few servers leave nothing behind, nor does a run that is killed."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from astune.types import Task
from tests.tools.conftest import notes, servers_of

pytest.importorskip("mcp")
KILLED = """
import asyncio, sys
from tests.tools.conftest import notes, servers_of
from astune.types import Task

async def main():
    async with servers_of(notes(isolation="episode", reset="reset", warm=2, most=3)) as servers:
        taken = [await servers.take(Task("t", "")) for each in range(3)]
        pids = [(await each.call("pid", {})).text for each in taken]
        call = asyncio.ensure_future(taken[0].call("sleep", {"seconds": 600}))
        await asyncio.sleep(0.5)
        print(*pids, flush=True)
        await call

asyncio.run(main())
"""


def held():
    """What this process has: children, open files, tasks, and pages of memory."""
    gc.collect()
    this = psutil.Process()
    return (len(this.children(recursive=True)), this.num_fds(), len(asyncio.all_tasks())), this.memory_info().rss


async def play(servers, number):
    tools = await servers.take(Task(f"t{number}", ""))
    try:
        if number % 32 == 3:
            await tools.call("die", {})
        else:
            assert (await tools.call("add", {"note": str(number)})).text == "1 notes"
    finally:
        tools.give_back()


async def play_many(parts, **options):
    """What is held after each part, of so many episodes side by side, and whether nothing is held once all is closed
    that was not before."""
    before, _ = held()
    async with servers_of(notes(isolation="episode", **options)) as servers:
        seen = []
        for episodes in parts:
            await asyncio.gather(*(play(servers, each) for each in range(episodes)))
            await settled(servers)
            seen.append(held())
    return seen, held()[0] == before


async def settled(servers):
    """Once all that the pool starts and closes has been."""
    pool = servers.pools["notes"]
    while pool._ending or not all(each.done() for each in pool._idle):
        await asyncio.wait([*pool._ending, *pool._idle])
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["reset", "restart"])
async def test_at_the_end_there_is_no_more_than_in_the_middle(way):
    options = {"reset": "reset", "warm": 3, "most": 3} if way == "reset" else {"warm": 1, "most": 2}
    ((middle, _), (end, _)), closed = await play_many([16, 16] if way == "reset" else [3, 3], **options)
    assert (middle, closed) == (end, True)


@pytest.mark.release
async def test_a_thousand_episodes_over_eight_servers_leave_nothing_nor_memory():
    seen, closed = await play_many([256] * 5, reset="reset", warm=8, most=8)
    (first, memory), (last, at_end) = seen[1], seen[-1]
    assert (first, closed) == (last, True)
    assert at_end < memory + 2**22


@pytest.mark.fault(
    "Tools and environments",
    "a run is killed while its MCP servers work",
    "none of them goes on, those that are in a call neither (Linux)",
)
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, of Linux")
def test_a_run_that_is_killed_leaves_no_server():
    run = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert run.stdout is not None
    processes = [psutil.Process(int(each)) for each in run.stdout.readline().split()]
    run.kill()
    run.communicate()
    gone, left = psutil.wait_procs(processes, timeout=60)
    for each in left:
        os.kill(each.pid, signal.SIGKILL)
    assert len(gone) == 3 and not left
