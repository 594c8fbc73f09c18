import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from astune.errors import JudgeError
from astune.task_judge.math import judge as math_judge
from astune.task_judge.math.judge import AnswerAtFault, MathPool

ENDLESS = "9^{9^{9^9}}"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


async def kill_at_work(pool: MathPool, sign: signal.Signals) -> None:
    """End the one process of a pool as soon as it has something to compare."""
    (process,) = pool._pool._dealer.processes
    while not process.load:
        await asyncio.sleep(0)
    os.kill(process.pid, sign)


def gone(pid: int, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


@contextmanager
def run_parent(body: str) -> Iterator["subprocess.Popen[str]"]:
    """A Python process with a pool whose one process is running; it prints that one's id."""
    code = textwrap.dedent(
        """
        import asyncio, os, signal, sys, time
        from astune.task_judge.math.judge import MathPool
        pool = MathPool(workers=1, timeout=10)
        assert asyncio.run(pool.equal("2x", "x+x"))
        print(pool.pids[0], flush=True)
        """
    ) + textwrap.dedent(body)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        try:
            yield parent
        finally:
            parent.kill()


@pytest.mark.fault(
    "Judges", "a comparison of two answers never ends", "its process is replaced; the others are compared"
)
async def test_one_comparison_that_never_ends_harms_no_other() -> None:
    pool = MathPool(workers=2, timeout=5)
    assert await pool.equal("2", "x") is False
    pairs = [(f"{n}x", f"x*{n + n % 2}") for n in range(40)]
    pairs[3] = pairs[20] = ("2", ENDLESS)
    results = await asyncio.gather(*(pool.equal(*pair) for pair in pairs), return_exceptions=True)
    for index, result in enumerate(results):
        if index in (3, 20):
            assert isinstance(result, JudgeError)
            if "took longer than 5 seconds" not in str(result):  # a busy machine, of which nobody is told
                assert isinstance(result, AnswerAtFault)
                assert "took more than 1 seconds of computing and was stopped" in str(result)
        else:
            assert result is (index % 2 == 0)


async def test_what_waits_behind_a_slow_comparison_is_compared_by_another_process() -> None:
    pool = MathPool(workers=2, timeout=600)
    await asyncio.gather(*(pool.equal(f"{n}x", f"x*{n}") for n in range(20)))
    endless = asyncio.create_task(pool.equal("2", ENDLESS))
    assert await asyncio.gather(*(pool.equal(f"{n}y", f"y*{n}") for n in range(40))) == [True] * 40
    assert not endless.done()
    endless.cancel()


async def test_threads_with_loops_of_their_own_share_a_pool() -> None:
    pool = MathPool(workers=1, timeout=600)

    def compare(letter: str) -> bool | None:
        return asyncio.run(pool.equal(f"{letter}+1", f"1+{letter}"))

    assert await asyncio.gather(*(asyncio.to_thread(compare, letter) for letter in "abcabc")) == [True] * 6
    assert len(pool.pids) == 1


async def test_a_process_that_does_not_start_is_an_error_that_says_how_to_see_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(math_judge, "WORKER_FILE", tmp_path / "missing.py")
    with pytest.raises(JudgeError, match=r"did not start; .*missing.py 10` shows why"):
        await MathPool(workers=1, timeout=600).equal("x", "y+1")


@pytest.mark.fault(
    "Judges", "a process that compares answers is killed", "it is replaced; its comparison has no verdict"
)
async def test_a_process_that_dies_is_replaced_and_its_comparison_gets_an_error() -> None:
    pool = MathPool(workers=1, timeout=600)
    assert await pool.equal("x+1", "1+x")
    [pid] = pool.pids
    killing = asyncio.create_task(kill_at_work(pool, signal.SIGKILL))
    with pytest.raises(JudgeError, match="died with exit code -9") as killed:
        await pool.equal("2", ENDLESS)
    await killing
    assert not isinstance(killed.value, AnswerAtFault)  # whoever killed it
    assert not await pool.equal("x+1", "2+x")
    assert pool.pids != [pid]


@pytest.mark.parametrize("code", [signal.SIGSEGV, signal.SIGABRT])
async def test_an_answer_that_crashes_the_process_is_at_fault(code: signal.Signals) -> None:
    pool = MathPool(workers=1, timeout=600)
    assert await pool.equal("x+1", "1+x")
    killing = asyncio.create_task(kill_at_work(pool, code))
    with pytest.raises(AnswerAtFault, match=f"died with exit code -{code.value}"):
        await pool.equal("2", ENDLESS)
    await killing


async def test_a_result_is_kept_and_a_failure_is_tried_again() -> None:
    pool = MathPool(workers=1, timeout=5)
    assert await pool.equal("x+1", "1+x")
    [pid] = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert await pool.equal("x+1", "1+x")
    for _ in range(2):
        with pytest.raises(JudgeError):
            await pool.equal("2", ENDLESS)
    assert await pool.equal("x+2", "2+x")


async def test_giving_up_on_a_comparison_does_not_take_it_from_others() -> None:
    pool = MathPool(workers=1, timeout=600)
    first = asyncio.create_task(pool.equal("x+1", "1+x"))
    second = asyncio.create_task(pool.equal("x+1", "1+x"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second


async def test_processes_end_with_the_pool() -> None:
    pool = MathPool(workers=1, timeout=600)
    assert await pool.equal("x+1", "1+x")
    [pid] = pool.pids
    del pool
    gc.collect()
    assert await asyncio.to_thread(gone, pid)


def test_the_process_ends_with_the_interpreter() -> None:
    with run_parent("") as parent:
        out, _ = parent.communicate(timeout=120)
        assert parent.returncode == 0
        assert gone(int(out))


@pytest.mark.fault("Judges", "a run is killed while answers are compared", "no process is left behind")
def test_a_process_in_an_endless_comparison_does_not_outlive_a_parent_that_was_killed() -> None:
    endless = f"""
        async def hang():
            asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGKILL)
            await pool.equal("2", "{ENDLESS}")
        asyncio.run(hang())
        """
    with run_parent(endless) as parent:
        out, _ = parent.communicate(timeout=120)
        assert parent.returncode == -signal.SIGKILL
        assert gone(int(out))


async def test_ctrl_c_in_the_terminal_does_not_reach_the_processes() -> None:
    pool = MathPool(workers=1, timeout=600)
    assert await pool.equal("x+1", "1+x")
    assert os.getpgid(pool.pids[0]) != os.getpgid(0)
