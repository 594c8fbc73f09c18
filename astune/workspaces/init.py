"""The first process of a sandbox. Its text is run inside by an interpreter that has no ASTune.

It starts commands, watches what they use, and ends all of them where they use too much. As process 1 it cannot be
signalled from inside, and as it is not dumpable neither its memory nor its descriptors can be opened there. The control
socket, over which calls come with pipes of their own, is its alone: nothing inside can answer for a call. It ends with
the other end of that socket, and everything inside with it.

A sandbox waits for it to start, so it imports modules of C alone: `os` and `signal` would take as long as the rest.
"""

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found]
import _socket
import posix
import resource
import select
import sys
import time

DUMPABLE = 4
"""`PR_SET_DUMPABLE` of prctl."""
EVERY_MS = 50
WRITABLE = ("/workspace", "/tmp", "/dev/shm")
PAGE = resource.getpagesize()
TICKS = posix.sysconf("SC_CLK_TCK")
EACH = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


class Init:
    def __init__(self, control: int, limits: dict[str, float]) -> None:
        self.control, self.limits = _socket.socket(fileno=control), limits
        self.prctl = _ctypes.dlsym(_ctypes.dlopen("", 2), "prctl")
        self.set_dumpable(0)
        self.running: dict[int, int] = {}  # id of a command's process -> its status pipe
        self.watched = time.monotonic()
        self.wake, write = posix.pipe()
        for end in (self.wake, write):
            posix.set_blocking(end, False)
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def set_dumpable(self, value: int) -> None:
        if _ctypes.call_function(self.prctl, (DUMPABLE, value, 0, 0, 0)) != 0:
            posix._exit(1)

    def serve(self) -> None:
        self.control.sendmsg([b"ready"], self.open_door())
        while True:
            poll = select.poll()
            poll.register(self.control.fileno(), select.POLLIN)
            poll.register(self.wake, select.POLLIN)
            for status in self.running.values():
                poll.register(status, 0)  # an error as soon as the caller has closed its end
            ready = dict(poll.poll(self.wait_ms()))
            if self.wake in ready:
                posix.read(self.wake, 4096)
                self.reap()
            for pid, status in list(self.running.items()):
                if status in ready:
                    self.stop_session(pid)
            if self.control.fileno() in ready:
                self.take()
            if self.wait_ms() == 0:
                if exceeded := self.find_exceeded():
                    self.stop_all(exceeded)
                self.watched = time.monotonic()

    def wait_ms(self) -> int | None:
        """Until the next look at what is used; None where nothing runs."""
        return max(0, EVERY_MS - int(1000 * (time.monotonic() - self.watched))) if self.reap() else None

    def open_door(self) -> list[tuple[int, int, bytes]]:
        """The socket at which connections out are taken, outside alone; none where there is no way out."""
        if "port" not in self.limits:
            return []
        listener = _socket.socket()
        listener.bind(("127.0.0.1", int(self.limits["port"])))
        listener.listen(64)
        return [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.detach().to_bytes(4, sys.byteorder))]

    def take(self) -> None:
        """Do what the next message says: `stop`, or a folder and a command, with pipes."""
        message, passed, _, _ = self.control.recvmsg(1 << 20, _socket.CMSG_SPACE(16))
        if not message:
            posix._exit(0)
        if message == b"stop":
            self.stop_all("stopped")
            self.control.send(b"stopped")
            return
        folder, *argv = message.split(b"\0")
        stdin, stdout, stderr, status = memoryview(passed[0][2]).cast("i")
        try:
            pid = posix.fork()
        except OSError:
            self.answer(status, 126, "processes")
        else:
            if pid == 0:
                self.become(argv, folder, (stdin, stdout, stderr))
            self.running[pid] = status
        for fd in (stdin, stdout, stderr):
            posix.close(fd)

    def become(self, argv: list[bytes], folder: bytes, fds: tuple[int, ...]) -> None:
        """Turn into the command, with no descriptor and no right that is not its own."""
        try:
            posix.setsid()
            for number, fd in enumerate(fds):
                posix.dup2(fd, number)
            posix.closerange(3, 1024)
            _signal.set_wakeup_fd(-1)
            for each in (_signal.SIGINT, _signal.SIGCHLD, _signal.SIGPIPE):
                _signal.signal(each, _signal.SIG_DFL)
            self.set_dumpable(1)
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
            for name, most in self.limits.items():
                if name in EACH:
                    resource.setrlimit(EACH[name], (int(most), int(most)))
            posix.chdir(folder)
            execute(argv)
        except BaseException as error:
            why = error.strerror if isinstance(error, OSError) else error
            write(2, f"{argv[0].decode(errors='replace')}: {why}\n".encode())
            posix._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def reap(self) -> bool:
        """Take in those that have ended, and tell whether any is left: the parents of all lead to this one."""
        while True:
            try:
                pid, code = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self.running:
                self.answer(self.running.pop(pid), posix.waitstatus_to_exitcode(code), "")

    def answer(self, status: int, exit_code: int, ended: str) -> None:
        write(status, f"{exit_code} {ended}".encode())
        posix.close(status)

    def stop_session(self, session: int) -> None:
        """End what a command started, unless that has left its session. Its caller has gone."""
        for pid, fields in self.find_processes():
            if int(fields[3]) == session:
                kill(pid)
        posix.close(self.running.pop(session))

    def stop_all(self, why: str) -> None:
        """End everything but this process."""
        kill(-1)
        for pid in list(self.running):
            self.answer(self.running.pop(pid), 137, why)
        while True:
            try:
                posix.waitpid(-1, 0)
            except ChildProcessError:
                return

    def find_processes(self) -> list[tuple[int, list[bytes]]]:
        """The ids of all others, with the fields of their `stat` behind the name."""
        found = []
        for name in posix.listdir("/proc"):
            if name.isdigit() and name != "1":
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        found.append((int(name), file.read().rpartition(b") ")[2].split()))
                except OSError:
                    continue  # it has ended
        return found

    def find_exceeded(self) -> str | None:
        """The name of a limit that is used up, if one is."""
        processes = self.find_processes()
        if not processes:
            return None
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = spent.ru_utime + spent.ru_stime
        cpu += sum(int(ticks) for _, fields in processes for ticks in fields[11:15]) / TICKS
        if cpu > self.limits["cpu"]:
            return "cpu"
        if self.measure_memory(processes) > self.limits["memory"]:
            return "memory"
        if sum(each.f_files - each.f_ffree for each in map(posix.statvfs, WRITABLE)) > self.limits["files"]:
            return "files"
        return None

    def measure_memory(self, processes: list[tuple[int, list[bytes]]]) -> int:
        """The bytes of all. What several share is counted once only where it matters, as that takes longer."""
        most = sum(int(fields[21]) for _, fields in processes) * PAGE
        if most <= self.limits["memory"]:
            return most
        return sum(self.measure_share(pid, fields) for pid, fields in processes)

    def measure_share(self, pid: int, fields: list[bytes]) -> int:
        """The bytes of a process, those that it shares divided by how many share them, where that can be read."""
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
        except OSError:
            return int(fields[21]) * PAGE


def write(fd: int, data: bytes) -> None:
    """Write where somebody may still read."""
    try:
        posix.write(fd, data)
    except OSError:
        return


def execute(argv: list[bytes]) -> None:
    """Turn into the first program of that name on the path."""
    folders = [b""] if b"/" in argv[0] or not argv[0] else posix.environ[b"PATH"].split(b":")
    denied: OSError | None = None
    for folder in folders:
        try:
            posix.execv(folder + b"/" * bool(folder) + argv[0], argv)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            denied = denied or error
    raise denied or missing


def kill(pid: int) -> None:
    """End a process, or with -1 all others."""
    try:
        posix.kill(pid, _signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    Init(
        int(sys.argv[1]), {name: float(most) for name, _, most in (each.partition("=") for each in sys.argv[2:])}
    ).serve()
