"""A sandbox of one episode: bubblewrap with everything unshared, limits, and a first process that starts commands.

    async with Sandbox(limits) as sandbox:
        result = await sandbox.run(["sh", "-c", "echo hello > a.txt; cat a.txt"], seconds=10.0)

It lives in namespaces and in memory: no folder, mount or group of processes of the machine belongs to it, and nothing
is left of it once its first process has ended, which ends with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import marshal
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from astune.config.rollout import SandboxLimits
from astune.errors import EnvServiceError, SetupError
from astune.workspaces.calls import CommandResult, PipedCall
from astune.workspaces.door import PORT, PROXY, Door
from astune.workspaces.seccomp import write_filter

WORKDIR = "/workspace"
USER = 1000
"""The user inside."""
PRIVATE_USERS = 1_000_000_000
"""As root, sandboxes run as users from here on, who own nothing; root is bound by no limit of processes."""
START_SECONDS = 30.0
CLOSE_SECONDS = 5.0
"""A first process that has not ended by then is killed."""
MEGABYTE = 1 << 20
FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
OF_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs")
PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
WRITTEN = {
    "/etc/passwd": f"root:x:0:0::/:/bin/false\nagent:x:{USER}:{USER}::{WORKDIR}:/bin/sh\n",
    "/etc/group": f"agent:x:{USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
WRITE = """mkdir -p -- "$(dirname -- "$1")" && { [ ! -L "$1" ] && [ ! -p "$1" ] || rm -f -- "$1"; } && cat > "$1" """
"""Writes a file itself, and not where a link in its place points to."""
INIT = Path(__file__).with_name("init.py")
LOAD = "import marshal, sys; exec(marshal.loads(open(int(sys.argv.pop()), 'rb').read()))"
"""Runs the first process's code, compiled here as that takes longer than all the rest of its start."""
SHOW = 'mount --bind "$1" /mnt && echo && read end'


class Sandbox:
    """Started with `start`, ended with `close` and with the process. A command may be run from any event loop."""

    def __init__(self, limits: SandboxLimits, shown: Mapping[str, str] | None = None, door: Door | None = None) -> None:
        """`shown` are texts that can be read inside, by their place; `door` is the way to named hosts."""
        self.limits = limits
        self.door = door
        self.failures: list[Exception] = []
        """What was met once the sandbox itself had ended, which no command can bring about."""
        self.ended: Counter[str] = Counter()
        """The number of commands that something ended, by what it was."""
        self._shown = {**WRITTEN, **(shown or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._passed: list[int] = []

    @property
    def pid(self) -> int:
        """The id of the process outside that holds the sandbox."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._control is not None and self._process.poll() is None

    async def __aenter__(self) -> Sandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Raises SetupError where the machine cannot."""
        check_machine()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, open_data(self._shown) as data:
            command = self.write_command(theirs.fileno(), data)
            fds = (theirs.fileno(), *data.values())
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                env={"PATH": ":".join(PROGRAMS)},
                start_new_session=True,
            )
        self._control = ours
        try:
            said = await self._hear()
            if self.door is not None and self._passed:
                await self.door.open(socket.socket(fileno=self._passed.pop()))
        except BaseException:
            await self.close()
            raise
        if said != b"ready":
            assert self._process.stderr is not None
            why = self._process.stderr.read(2000).decode(errors="replace").strip()
            await self.close()
            raise SetupError(f"a sandbox could not be started: {why or 'its first process ended at once'}")

    def write_command(self, control: int, data: dict[str, int]) -> list[str]:
        """The command that starts it, whose first process speaks over the descriptor `control`."""
        base = Path(sys.base_prefix).resolve()
        python = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        shown = base
        outer: list[str] = []
        if os.geteuid() == 0:
            user = PRIVATE_USERS + secrets.randbelow(PRIVATE_USERS)
            outer = ["nsenter", f"--setuid={user}", f"--setgid={user}"]
            if not all(place.stat().st_mode & 1 for place in (base, *base.parents)):
                shown = Path("/mnt")
                outer.append(f"--mount=/proc/{os.getpid()}/fd/{open_namespace(base)}")
        size = str(self.limits.disk_mb * MEGABYTE)
        inner = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
        inner += ["--as-pid-1", "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox"]
        inner += ["--seccomp", str(data["seccomp"]), "--ro-bind", "/usr", "/usr"]
        for place in FOLDERS:
            if os.path.islink(place):
                inner += ["--symlink", os.readlink(place), place]
            elif os.path.isdir(place):
                inner += ["--ro-bind", place, place]
        for place in OF_ETC:
            inner += ["--ro-bind-try", place, place]
        for place, descriptor in data.items():
            if place.startswith("/"):
                inner += ["--perms", "0444", "--file", str(descriptor), place]
        path = ":".join(PROGRAMS)
        if not base.is_relative_to("/usr"):
            inner += ["--ro-bind", str(shown), str(base)]
            path += f":{base}/bin"
        inner += ["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        inner += ["--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", WORKDIR, "--remount-ro", "/"]
        inner += ["--clearenv", "--chdir", WORKDIR]
        proxy = {} if self.door is None else PROXY
        for name, value in {"HOME": WORKDIR, "PATH": path, "LANG": "C.UTF-8", "TMPDIR": "/tmp", **proxy}.items():
            inner += ["--setenv", name, value]
        told = [f"{name}={most}" for name, most in self.limits.for_init().items()]
        told += [] if self.door is None else [f"port={PORT}"]
        return [*outer, *inner, "--", str(python), "-I", "-S", "-c", LOAD, str(control), *told, str(data["init"])]

    async def _hear(self) -> bytes:
        """The next word of the first process; nothing if it has ended."""
        control, loop = self._control, asyncio.get_running_loop()
        assert control is not None
        heard = asyncio.Event()
        loop.add_reader(control, heard.set)
        try:
            await asyncio.wait_for(heard.wait(), START_SECONDS)
            said, self._passed, _, _ = socket.recv_fds(control, 64, 1)
        except (ConnectionError, asyncio.TimeoutError):
            return b""
        finally:
            loop.remove_reader(control)
        return said

    async def close(self) -> None:
        """End the sandbox and everything in it. May be called again."""
        process, control = self._process, self._control
        self._control = None
        if control is not None:
            control.close()
        if self.door is not None:
            self.door.close()
        if process is None:
            return
        patience = time.monotonic() + CLOSE_SECONDS
        while process.poll() is None:  # it ends when the first process and all others inside have ended
            if time.monotonic() > patience:
                process.kill()
            await asyncio.sleep(0.002)
        if process.stderr is not None:
            process.stderr.close()

    async def stop_commands(self) -> None:
        """End all that runs inside; the files stay as they are. Raises EnvServiceError."""
        self._say(b"stop", ())
        if await self._hear() != b"stopped":
            raise self._fail()

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = WORKDIR,
        seconds: float | None = None,
        stdin: bytes = b"",
        most: int | None = None,
    ) -> CommandResult:
        """The outcome of a command, bounded by the limits: it may run for `seconds` and write `most` bytes, at most
        those of the limits unless `most` is given. Raises EnvServiceError where the sandbox itself has ended; whatever
        the command does is a result."""
        limits = self.limits
        seconds = min(limits.command_seconds, seconds or limits.command_seconds)
        message = b"\0".join([*(each.encode(errors="replace") for each in (cwd, *argv))])
        if any("\0" in each for each in (cwd, *argv)) or len(message) > limits.longest_command:
            return CommandResult(126, b"", b"the command has a null byte, or is too long")
        call = PipedCall(stdin, limits.output_kb * 1024 if most is None else most)
        try:
            self._say(message, call.theirs)
        finally:
            call.close_theirs()
        result = await call.finish(seconds)
        if result is None:
            raise self._fail()
        if result.ended:
            self.ended[result.ended] += 1
        return result

    async def read(self, path: str) -> bytes:
        """The bytes of a file. Raises OSError where there is none, or it is longer than the limit of output."""
        result = await self.run(["cat", "--", path])
        if result.exit_code != 0:
            kind = FileNotFoundError if b"No such file" in result.stderr else OSError
            raise kind(result.stderr.decode(errors="replace").strip() or f"{path}: {result.ended}")
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Raises OSError where that cannot be done."""
        result = await self.run(["sh", "-c", WRITE, "sh", path], stdin=data)
        if result.exit_code != 0:
            raise OSError(result.stderr.decode(errors="replace").strip() or f"{path}: {result.ended}")

    async def pack(self, most: int) -> bytes:
        """The files of the workspace as a tar archive, after all commands have been ended. Raises EnvServiceError where
        they are more than `most` bytes."""
        await self.stop_commands()
        result = await self.run(["tar", "-c", "-C", WORKDIR, "."], most=most)
        if result.exit_code != 0 or result.ended:
            why = result.ended or result.stderr.decode(errors="replace")
            raise EnvServiceError(f"the files of the episode could not be packed into {most} bytes: {why}")
        return result.stdout

    async def unpack(self, archive: bytes) -> None:
        """The files of a tar archive, into the workspace. Raises EnvServiceError where they do not fit."""
        result = await self.run(["tar", "-x", "-C", WORKDIR, "--no-same-owner"], stdin=archive)
        if result.exit_code != 0:
            raise EnvServiceError(f"the files do not fit into the sandbox: {result.stderr.decode(errors='replace')}")

    def _say(self, message: bytes, fds: Sequence[int]) -> None:
        if self._control is None:
            raise self._fail()
        try:
            socket.send_fds(self._control, [message], list(fds))
        except OSError as error:
            raise self._fail() from error

    def _fail(self) -> EnvServiceError:
        error = EnvServiceError("the sandbox of the episode has ended")
        self.failures.append(error)
        return error


def check_machine() -> None:
    """Raises SetupError where there is no bubblewrap."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        raise SetupError(
            "AstuneSandbox needs Linux and bubblewrap 0.8 or newer (apt-get install bubblewrap); where that cannot be, "
            "astune.rollout.workspace.type takes DockerWorkspace, or `none`: no isolation at all"
        )


@contextlib.contextmanager
def open_data(texts: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Descriptors of what is written into the sandbox, by its place there; the filter of system calls is `seccomp`, and
    the code of the first process `init`."""
    with contextlib.ExitStack() as stack:
        data = {}
        for place, text in {
            **{place: text.encode() for place, text in texts.items()},
            "seccomp": write_filter(),
            "init": compile_init(),
        }.items():
            data[place] = os.memfd_create(place.rpartition("/")[2])
            stack.callback(os.close, data[place])
            os.write(data[place], text)
            os.lseek(data[place], 0, os.SEEK_SET)
        yield data


@functools.cache
def compile_init() -> bytes:
    return marshal.dumps(compile(INIT.read_text(encoding="utf-8"), INIT.name, "exec"))


@functools.cache
def open_namespace(base: Path) -> int:
    """A descriptor of mounts that show the interpreter, which is in root's own folder, to a user who may not look
    there. Nothing but that descriptor holds them, so they end with this process. Raises SetupError."""
    command = ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", SHOW, "sh", str(base)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as holder:
        assert holder.stdout is not None and holder.stderr is not None
        if not holder.stdout.readline():
            raise SetupError(f"a sandbox could not be started: {holder.stderr.read().decode(errors='replace').strip()}")
        return os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
