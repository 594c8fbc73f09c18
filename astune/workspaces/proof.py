"""The proof, from inside, that a sandbox of this machine holds: it tries what it must not reach and to use too much.

What a tool says of its isolation is not believed: a kernel, a container around the run or an old bubblewrap may give
less than was asked for.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile

from astune.config.rollout import SandboxLimits
from astune.errors import SetupError
from astune.workspaces.sandbox import Sandbox

LIMITS = SandboxLimits(memory_mb=96, disk_mb=2, files=200, processes=12, cpu_seconds=60.0, command_seconds=20.0)
"""Small ones, which are soon reached."""
ALLOWED = ("HOME", "PATH", "LANG", "TMPDIR", "PWD", "LC_CTYPE")
REACHES = r"""
import ctypes, json, os, socket, sys
given = json.loads(sys.argv[1])
found = []
def attempt(what, action):
    try:
        action()
    except (OSError, MemoryError):
        return
    found.append(what)
def connect(address):
    with socket.create_connection(address, timeout=1.0):
        pass
def refused(number):
    if number:
        raise OSError
for path in given["files"]:
    attempt("reads " + path, lambda: os.stat(path))
for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
    attempt("writes " + path, lambda: open(path, "w").close())
for host, port in given["addresses"]:
    attempt(f"connects to {host}:{port}", lambda: connect((host, port)))
if [name for _, name in socket.if_nameindex()] != ["lo"]:
    found.append("sees network interfaces of the machine")
attempt("signals a process of the machine", lambda: os.kill(given["pid"], 0))
if len([each for each in os.listdir("/proc") if each.isdigit()]) > 3:
    found.append("sees processes of the machine")
for name in os.environ:
    if name not in given["variables"]:
        found.append("reads the variable " + name)
attempt("reads the first process's memory", lambda: open("/proc/1/mem", "rb").close())
attempt("opens the first process's descriptors", lambda: os.listdir("/proc/1/fd"))
os.kill(1, 9)
libc = ctypes.CDLL(None, use_errno=True)
attempt("makes namespaces", lambda: refused(libc.unshare(0x10000000)))
attempt("mounts", lambda: refused(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
attempt("makes sockets that no namespace parts", lambda: socket.socket(40, 1).close())
attempt("has memory that no limit counts", lambda: os.memfd_create("x"))
if os.getuid() == 0 or int(next(l for l in open("/proc/self/status") if l.startswith("CapEff")).split()[1], 16):
    found.append("has rights of root")
print(json.dumps(found))
"""
FORKS = r"""
import os, time
for number in range(40):
    try:
        pid = os.fork()
    except OSError:
        print(number)
        break
    if pid == 0:
        time.sleep(10)
"""
TOGETHER = r"""
import os, time
for _ in range(3):
    if os.fork() == 0:
        held = bytearray(60_000_000)
        time.sleep(4)
        os._exit(0)
for _ in range(3):
    os.wait()
"""
ALONE = "bytearray(120_000_000)"
DISK = "open('/tmp/a', 'wb').write(bytes(2_000_000)); open('/tmp/b', 'wb').write(bytes(2_000_000))"


async def prove_isolation(kind: type[Sandbox] = Sandbox) -> None:
    """Raises SetupError with all that a sandbox of that kind reaches here and must not."""
    found = await _find_reached(kind)
    for what, code in (("uses too much memory in one process", ALONE), ("fills the disk", DISK)):
        async with kind(LIMITS) as sandbox:
            if (await sandbox.run(["python3", "-c", code])).exit_code == 0:
                found.append(what)
    async with kind(LIMITS) as sandbox:
        forks = await sandbox.run(["python3", "-c", FORKS], seconds=5.0)
        if not forks.stdout.strip().isdigit():
            found.append("starts more processes than it may")
        await sandbox.stop_commands()
        if (await sandbox.run(["python3", "-c", TOGETHER], seconds=10.0)).ended != "memory":
            found.append("uses too much memory in several processes")
    if found:
        raise SetupError(
            f"the sandbox does not hold on this machine: a command in it {'; '.join(found)}. Nothing is run in it. "
            "Look whether the kernel allows user namespaces (5.14 or newer) and bubblewrap is 0.8 or newer"
        )


async def _find_reached(kind: type[Sandbox]) -> list[str]:
    with socket.create_server(("0.0.0.0", 0)) as server, tempfile.NamedTemporaryFile() as secret:
        port = server.getsockname()[1]
        addresses = [(host, port) for host in ("127.0.0.1", *find_own_addresses())]
        given = {
            "files": [secret.name, "/etc/shadow", "/sys/kernel", "/var/run", "/run/user"],
            "addresses": [*addresses, ("169.254.169.254", 80)],
            "pid": os.getpid(),
            "variables": ALLOWED,
        }
        async with kind(LIMITS) as sandbox:
            tried = await sandbox.run(["python3", "-c", REACHES, json.dumps(given)])
            if tried.exit_code != 0:
                return [f"cannot try what it must not reach: {tried.stderr.decode(errors='replace')[-500:]}"]
    found: list[str] = json.loads(tried.stdout)
    return found


def find_own_addresses() -> list[str]:
    """The addresses of this machine at which its own servers may listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return []
        return [str(probe.getsockname()[0])]
