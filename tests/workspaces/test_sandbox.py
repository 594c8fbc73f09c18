"""The sandbox: what a command finds in it, what it may use up, and the proof of both."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from astune.config.rollout import SandboxLimits
from astune.errors import EnvServiceError, JudgeError, SetupError
from astune.workspaces import open_box
from astune.workspaces.door import Door
from astune.workspaces.proof import prove_isolation
from astune.workspaces.sandbox import Sandbox
from tests.attack import sandboxes

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.mark.fault(
    "Tools and environments",
    "a policy's commands bomb the machine, read the host, reach the run's gateway, kill, forge answers, or stay behind",
    "AstuneSandbox holds all of it: it is that episode's data, the run goes on, and no process, mount or folder is "
    "left, not when the run is killed either; `make attack` goes on for ten minutes",
)
def test_the_sandbox_holds_what_a_policy_writes() -> None:
    rows = [*sandboxes.attack(), *sandboxes.endure(1.0, side_by_side=32, episodes=64)]
    assert len(rows) > 20
    assert [row for row in rows if row.passed is not True] == []


@pytest.mark.release
def test_256_episodes_over_32_sandboxes_for_ten_minutes_leave_nothing() -> None:
    assert [row for row in sandboxes.endure(600.0) if row.passed is not True] == []


@pytest.mark.fault(
    "Tools and environments",
    "the machine gives a sandbox less isolation than was asked for",
    "the proof from inside finds it at the start, and nothing is run",
)
async def test_the_proof_finds_holes() -> None:
    holes = ["--share-net", "--setenv", "SECRET", "x", "--ro-bind", "/etc", "/etc"]

    class Leaky(Sandbox):
        def write_command(self, control: int, data: dict[str, int]) -> list[str]:
            command = super().write_command(control, data)
            last = command.index("--chdir")
            return [*command[:last], *holes, *command[last:]]

    with pytest.raises(SetupError) as told:
        await prove_isolation(Leaky)
    for hole in ("reads /etc/shadow", "connects to 127.0.0.1", "sees network interfaces", "reads the variable SECRET"):
        assert hole in str(told.value)


async def test_the_proof_finds_limits_that_do_not_hold() -> None:
    class Unbounded(Sandbox):
        def __init__(self, asked: SandboxLimits) -> None:
            super().__init__(asked.model_copy(update={"processes": 100, "memory_mb": 2048, "disk_mb": 16}))

    with pytest.raises(SetupError) as told:
        await prove_isolation(Unbounded)
    for limit in ("memory in one process", "fills the disk", "more processes", "memory in several"):
        assert limit in str(told.value)


async def test_commands_side_by_side_have_their_own_results() -> None:
    async with Sandbox(SandboxLimits()) as sandbox:
        results = await asyncio.gather(*(sandbox.run(["sh", "-c", f"echo {n}; exit {n}"]) for n in range(20)))
    assert [(int(each.stdout), each.exit_code) for each in results] == [(n, n) for n in range(20)]


async def test_a_background_process_keeps_no_command_waiting_and_lives_on() -> None:
    async with Sandbox(SandboxLimits()) as sandbox:
        begun = await sandbox.run(["sh", "-c", "sleep 50 & echo $!"])
        alive = await sandbox.run(["kill", "-0", begun.stdout.decode().strip()])
    assert (begun.exit_code, begun.ended, alive.exit_code) == (0, "", 0)


async def test_a_cancelled_command_is_ended() -> None:
    async with Sandbox(SandboxLimits()) as sandbox:
        running = asyncio.ensure_future(sandbox.run(["sh", "-c", "echo $$ > pid; sleep 50"]))
        while not (pid := (await sandbox.run(["cat", "pid"])).stdout):
            pass
        running.cancel()
        look = ["kill", "-0", pid.decode().strip()]
        while (await sandbox.run(look)).exit_code == 0:
            pass
        assert b"No such process" in (await sandbox.run(look)).stderr


async def test_files_go_in_and_out_as_they_are() -> None:
    data = bytes(range(256)) * 1000
    async with Sandbox(SandboxLimits()) as sandbox:
        await sandbox.write("/workspace/a b/ü.bin", data)
        assert await sandbox.read("/workspace/a b/ü.bin") == data
        with pytest.raises(FileNotFoundError):
            await sandbox.read("/workspace/missing")
        with pytest.raises(OSError, match="Read-only"):
            await sandbox.write("/usr/x", b"")


async def test_odd_commands_are_results() -> None:
    async with Sandbox(SandboxLimits()) as sandbox:
        odd = [["no-such-program"], ["echo", "\0"], ["echo", "x" * 200_000], ["/workspace"], ["echo", "\ud800"], [""]]
        codes = [(await sandbox.run(argv)).exit_code for argv in odd]
        nowhere = await sandbox.run(["true"], cwd="/no/such/folder")
    assert codes == [127, 126, 126, 126, 0, 126]
    assert nowhere.exit_code == 127


async def test_a_door_leads_to_named_hosts_alone() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        door = Door([f"LocalHost:{port}", "localhost"], forbidden=lambda address: False)  # this machine is the host
        told = await sandboxes.knock(door, f"localhost:{port}", f"127.0.0.1:{port}", "localhost:443", "localhost")
    assert told[0].split() == ["HTTP/1.1", "200", "connected", "KNOCK"]
    assert [line.split()[1] for line in told[1:]] == ["403", "502", "403"]


async def test_a_sandbox_that_ended_is_no_result() -> None:
    async with Sandbox(SandboxLimits()) as sandbox:
        running = asyncio.ensure_future(sandbox.run(["sleep", "50"]))
        await sandbox.run(["true"])
        await sandbox.close()
        with pytest.raises(EnvServiceError, match="has ended"):
            await running
        with pytest.raises(EnvServiceError, match="has ended"):
            await sandbox.run(["true"])
        assert len(sandbox.failures) == 2


@pytest.mark.fault("Judges", "the grader's box cannot be had, or the episode has no files", "no reward, and never 0")
async def test_a_box_that_cannot_be_had_is_the_judges_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JudgeError, match="artifacts_mb"):
        async with open_box(None):
            pass
    with pytest.raises(JudgeError, match="do not fit"):
        async with open_box(b"no archive"):
            pass
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JudgeError, match="bubblewrap"):
        async with open_box(b""):
            pass
