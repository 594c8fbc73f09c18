"""Commands that a policy would write, in the sandbox that is to hold them, and the sandbox under load.

Each is run in a sandbox with small limits; afterwards that sandbox still answers, or says why it does not, and a fresh
one knows nothing of what happened.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from astune.config.rollout import SandboxLimits, WorkspaceConfig
from astune.gateway.server import http_server
from astune.workspaces.box import open_box
from astune.workspaces.calls import CommandResult
from astune.workspaces.door import Door
from astune.workspaces.pool import WorkspacePool
from astune.workspaces.proof import find_own_addresses
from astune.workspaces.sandbox import Sandbox
from tests.attack.found import Found

LIMITS = SandboxLimits(
    memory_mb=128, disk_mb=4, files=300, processes=24, cpu_seconds=20.0, command_seconds=60.0, output_kb=64
)
IMPATIENT = 1.0
"""Seconds for what only its time may end. Others get a minute, as a busy machine may need that."""
FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
MEMORY_OF_ONE = "held = []\nwhile True: held.append(bytearray(10_000_000))"
MEMORY_OF_MANY = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(60_000_000)
time.sleep(60)
"""
SHARED_MEMORY = """
import mmap, time
held = [mmap.mmap(-1, 60_000_000) for _ in range(8)]
for each in held:
    each.write(bytes(60_000_000))
time.sleep(60)
"""
DIES = {"memory", "cpu", "time", "output", "files"}
BOUNDED: dict[str, tuple[list[str], set[str]]] = {
    "a fork bomb": (["python3", "-c", FORK_BOMB], {"time", "cpu"}),
    "a fork bomb of sh": (["sh", "-c", "f() { f | f & f; }; f"], {"", "time", "cpu", "output"}),
    "a memory bomb in one process": (["python3", "-c", MEMORY_OF_ONE], {"", "memory"}),
    "a memory bomb in several": (["python3", "-c", MEMORY_OF_MANY], {"memory"}),
    "a memory bomb in shared memory": (["python3", "-c", SHARED_MEMORY], {"memory"}),
    "endless output": (["sh", "-c", "yes"], {"output"}),
    "endless errors": (["sh", "-c", "yes >&2"], {"output"}),
    "an endless file": (["sh", "-c", "cat /dev/zero > endless"], {""}),
    "endless files": (["sh", "-c", "i=0; while :; do : > file$i; i=$((i + 1)); done"], {"files", "time"}),
    "sleep for ever": (["sleep", "infinity"], {"time"}),
    "a busy loop": (["sh", "-c", "while :; do :; done"], {"time"}),
    "a command that ignores signals": (["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"], {"time"}),
}
"""Commands that use up what they can get, and what may end them; "" is the kernel's refusal."""


def attack() -> Iterator[Found]:
    for name, (argv, ends) in BOUNDED.items():
        yield asyncio.run(_bounded(name, argv, ends))
    for what in (
        _reads_the_host,
        _reaches_the_gateway,
        _goes_through_the_door,
        _kills,
        _answers_for_another,
        _links_and_mounts,
        _stays,
        _taints,
    ):
        yield from asyncio.run(_rows(what))
    yield killed_run()


async def _rows(what: Callable[[], Awaitable[list[Found]]]) -> list[Found]:
    return await what()


async def _bounded(name: str, argv: list[str], ends: set[str]) -> Found:
    async with Sandbox(LIMITS) as sandbox:
        result = await sandbox.run(argv, seconds=IMPATIENT if "time" in ends else None)
        held = result.ended in ends and (bool(result.ended) or result.exit_code != 0 or name.endswith("sh"))
        await sandbox.stop_commands()
        after = await sandbox.run(["echo", "here"])
        answers = after.stdout == b"here\n" or after.ended in {"files", "cpu"}
        told = f"ended by {result.ended or 'the kernel'}, exit code {result.exit_code}; the sandbox answers: {answers}"
        return Found(f"sandbox: {name}", held and answers, told)


async def _script(text: str, *arguments: str) -> CommandResult:
    async with Sandbox(LIMITS) as sandbox:
        return await sandbox.run(["sh", "-c", text, "sh", *arguments])


async def _reads_the_host() -> list[Found]:
    os.environ["ASTUNE_ATTACK_SECRET"] = word = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "secret").write_text(word)
        text = 'cat "$1"; cat /proc/*/environ; cat /proc/1/cmdline /proc/mounts; ls -R /root /home /proc/1/cwd/; env; '
        seen = await _script(f"{text} cat /etc/shadow; ls /proc", f"{folder}/secret")
    del os.environ["ASTUNE_ATTACK_SECRET"]
    told = seen.stdout + seen.stderr
    return [
        Found("sandbox: reads the host's files and environment", word.encode() not in told, "nothing of either"),
        Found(
            "sandbox: sees the host's processes", str(os.getpid()).encode() not in seen.stdout.split(), "its own alone"
        ),
    ]


CONNECT = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=0.5)
    except OSError as error:
        print(place, "refused", error)
    else:
        print(place, "REACHED")
"""


FAMILIES = """
import socket
made = []
for family in range(46):
    try:
        socket.socket(family, socket.SOCK_DGRAM if family == 16 else socket.SOCK_STREAM).close()
        made.append(family)
    except OSError:
        pass
print(made)
"""
"""Families of sockets that can be made; VSOCK, 40, would lead to other sandboxes and to the machine's own host."""


async def _reaches_the_gateway() -> list[Found]:
    port = http_server().origin.rpartition(":")[2]
    places = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", *find_own_addresses())]
    async with Sandbox(LIMITS) as sandbox:
        tried = await sandbox.run(["python3", "-c", CONNECT, *places, "169.254.169.254:80"])
    lines = tried.stdout.decode().splitlines()
    async with Sandbox(LIMITS) as sandbox:
        made = await sandbox.run(["python3", "-c", FAMILIES])
    held = len(lines) == len(places) + 1 and not any("REACHED" in line for line in lines)
    others = made.stdout.decode().strip()
    row = "sandbox: reaches others by sockets that no namespace parts"
    return [
        Found("sandbox: reaches the run's gateway, or 169.254.169.254", held, "; ".join(lines) or str(tried)),
        Found(row, others == "[1, 2, 10, 16]", others),
    ]


KNOCK = """
import socket, sys
for place in sys.argv[1:]:
    with socket.create_connection(("127.0.0.1", 3128)) as door:
        door.sendall(f"CONNECT {place} HTTP/1.1\\r\\n\\r\\nknock".encode())
        door.shutdown(socket.SHUT_WR)
        print(door.makefile().read().replace("\\n", " "))
"""


async def knock(door: Door, *places: str) -> list[str]:
    """What a sandbox with that door is told of the places."""
    async with Sandbox(LIMITS, door=door) as sandbox:
        return (await sandbox.run(["python3", "-c", KNOCK, *places])).stdout.decode().splitlines()


async def _goes_through_the_door() -> list[Found]:
    """Even with the gateway and the cloud's metadata among the hosts that are named."""
    port = http_server().origin.rpartition(":")[2]
    own = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::1]", *find_own_addresses())]
    told = await knock(Door([*own, "169.254.169.254:80"]), *own, "169.254.169.254:80", "example.com:443", "x")
    held = len(told) == len(own) + 3 and all(line.split()[1] in ("502", "403") for line in told)
    return [Found("sandbox: reaches the run's gateway through its door to named hosts", held, "; ".join(told))]


async def _kills() -> list[Found]:
    async with Sandbox(LIMITS) as sandbox:
        text = f"kill -9 1; kill -STOP 1; kill -9 {os.getpid()} {os.getppid()} {sandbox.pid}; kill -9 -1"
        await sandbox.run(["sh", "-c", text])
        after = await sandbox.run(["echo", "here"])
    return [Found("sandbox: kills its parent", after.stdout == b"here\n", "the sandbox and the run go on")]


FORGE = """
import glob
for _ in range(50):
    for path in glob.glob("/proc/[0-9]*/fd/[0-9]*"):
        try:
            with open(path, "wb", buffering=0) as pipe:
                pipe.write(b"0 ")
        except OSError:
            pass
"""


async def _answers_for_another() -> list[Found]:
    async with Sandbox(LIMITS) as sandbox:
        honest = asyncio.ensure_future(sandbox.run(["sh", "-c", "sleep 0.5; exit 7"]))
        await sandbox.run(["timeout", "0.4", "python3", "-c", FORGE])
        told = (await honest).exit_code
    return [Found("sandbox: answers for another call", told == 7, f"exit code {told} of the command that exits with 7")]


async def _links_and_mounts() -> list[Found]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "target")
        target.write_text("untouched")
        async with Sandbox(LIMITS) as sandbox:
            script = 'ln -s "$1" link; ln -s / root; mount -t tmpfs none /tmp; unshare -Ur true; umount /proc'
            tried = await sandbox.run(["sh", "-c", script, "sh", str(target)])
            try:
                read = await sandbox.read("/workspace/link")
            except OSError:
                read = b""
            await sandbox.write("/workspace/link", b"replaced")
            listed = await sandbox.run(["ls", "root/"])
        held = (
            target.read_text() == "untouched" and not read and b"work" not in listed.stdout.replace(b"workspace", b"")
        )
        refused = tried.stderr.count(b"\n") >= 3
    return [Found("sandbox: links and mounts out", held and refused, "links lead nowhere, mounts are refused")]


async def _stays() -> list[Found]:
    word = f"stays-{secrets.token_hex(8)}"
    async with Sandbox(LIMITS) as sandbox:
        script = f"setsid nohup sh -c 'while :; do sleep 0.1; done' {word} > /dev/null 2>&1 &"
        result = await sandbox.run(["sh", "-c", script])
        there = _runs(word)
    return [
        Found(
            "sandbox: leaves a daemon behind",
            result.exit_code == 0 and there and not _runs(word),
            "it ends with its sandbox",
        )
    ]


def _runs(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


async def _taints() -> list[Found]:
    """The files of an episode meet neither the next one nor the grader's own."""
    everywhere = (
        "for f in /workspace /tmp /dev/shm /run /usr/bin; do echo taint > $f/taint; done; ln -s /dev/null test.py"
    )
    async with Sandbox(LIMITS) as sandbox:
        await sandbox.run(["sh", "-c", everywhere])
        packed = await sandbox.pack(1 << 20)
    seen = await _script("ls /workspace /tmp /dev/shm /run /usr/bin")
    async with open_box(packed, LIMITS) as box:
        await box.write("/workspace/test.py", b"print('graded')")
        graded = await box.run(["python3", "-I", "test.py"])
    return [
        Found(
            "sandbox: writes where the next episode reads", b"taint" not in seen.stdout, "a fresh one has none of it"
        ),
        Found("sandbox: a link where the grader writes", graded.stdout == b"graded\n", "the grader's own file is run"),
    ]


RUNS = """
import asyncio, sys
from astune.config.rollout import WorkspaceConfig
from astune.workspaces.pool import WorkspacePool
from tests.attack.sandboxes import play
async def main():
    async with WorkspacePool(WorkspaceConfig(type="AstuneSandbox", warm=4)) as pool:
        await play(pool, int(sys.argv[1]), int(sys.argv[2]))
        print("ready", flush=True)
        while True:
            await play(pool, int(sys.argv[1]), int(sys.argv[2]))
asyncio.run(main())
"""
ADOPTS = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
run = subprocess.Popen([sys.executable, "-c", *sys.argv[2:]], stdout=subprocess.PIPE)
assert run.stdout.readline() == b"ready\\n"
time.sleep(float(sys.argv[1]))
run.kill()
deadline = time.monotonic() + 60.0
while time.monotonic() < deadline:
    try:
        if os.waitpid(-1, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
    except ChildProcessError:
        print("none left")
        break
"""
"""Whatever process the run leaves when it is killed becomes a child of this one (`PR_SET_CHILD_SUBREAPER`)."""


def killed_run(side_by_side: int = 32, episodes: int = 64) -> Found:
    """A process that plays episodes in sandboxes is killed in the midst of them: nothing of it is left."""
    mounts = _mounts()
    with tempfile.TemporaryDirectory() as folder:
        moment = str(random.random())
        command = [sys.executable, "-c", ADOPTS, moment, RUNS, str(side_by_side), str(episodes)]
        told = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": folder}).stdout
        left = [
            what
            for what, there in (
                ("processes", told != b"none left\n"),
                ("folders", bool(os.listdir(folder))),
                ("mounts", bool(set(_mounts()) - set(mounts))),
            )
            if there
        ]
    said = f"left: {', '.join(left) or 'no process, mount or folder'}"
    return Found(f"sandbox: a run with {side_by_side} of them is killed", not left, said)


def _mounts() -> list[str]:
    return Path("/proc/mounts").read_text().splitlines()


def endure(seconds: float, side_by_side: int = 32, episodes: int = 256) -> Iterator[Found]:
    """Episodes, again and again, over so many workspaces: what is held at the end is what was held early on, and when
    the run has ended nothing is."""
    before = _held()
    early, late, played = asyncio.run(_endure(seconds, side_by_side, episodes))
    after = _held()
    for name, then in early.items():
        told = f"{then} early, {late[name]} at the end; {played} episodes over {side_by_side} workspaces"
        yield Found(f"sandboxes under load: {name}", late[name] <= then * 1.05 + 2, told)
    left = {name: after[name] - before[name] for name in ("processes", "mounts") if after[name] > before[name]}
    told = f"left: {left or 'no process or mount'}"
    yield Found("sandboxes under load: the run has ended", not left, told)


async def _endure(seconds: float, side_by_side: int, episodes: int) -> tuple[dict[str, int], dict[str, int], int]:
    played, begun, early = 0, time.monotonic(), {}
    async with WorkspacePool(WorkspaceConfig(type="AstuneSandbox", warm=4)) as pool:
        while True:
            await play(pool, side_by_side, episodes)
            played += episodes
            if not early and time.monotonic() - begun > seconds / 10:
                early = _held()
            if early and time.monotonic() - begun > seconds:
                return early, _held(), played


async def play(pool: WorkspacePool, side_by_side: int, episodes: int) -> None:
    """Episodes with a few commands, each of which leaves a daemon behind."""
    limit = asyncio.Semaphore(side_by_side)

    async def episode(number: int) -> None:
        async with limit, pool.lease(str(number)) as lease:
            for _ in range(3):
                result = await lease.sandbox.run(["sh", "-c", "echo $$ > a; setsid sleep 50 > /dev/null 2>&1 & cat a"])
                assert result.exit_code == 0, result

    await asyncio.gather(*(episode(number) for number in range(episodes)))


def _held() -> dict[str, int]:
    """What this process and its children hold."""
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) // 256
    descriptors = len(os.listdir("/proc/self/fd"))
    return {
        "processes": len(children),
        "descriptors": descriptors,
        "mounts": len(_mounts()),
        "MB": resident,
    }
