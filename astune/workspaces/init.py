"""The first process of a sandbox. Its text is run inside by an interpreter that has no ASTune: standard library only.

It starts commands, watches what they use, and ends all of them where they use too much. As process 1 it cannot be
signalled from inside, and as it is not dumpable neither its memory nor its descriptors can be opened there. The control
socket, over which calls come with pipes of their own, is its alone: nothing inside can answer for a call. It ends with
the other end of that socket, and everything inside with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any, NoReturn

DUMPABLE = 4
"""`PR_SET_DUMPABLE` of prctl."""
EVERY_MS = 50
WRITABLE = ("/workspace", "/tmp", "/dev/shm")
PAGE = resource.getpagesize()
TICKS = os.sysconf("SC_CLK_TCK")


class Init:
    def __init__(self, control: socket.socket, limits: dict[str, Any]) -> None:
        self.control, self.limits = control, limits
        self.prctl = ctypes.CDLL(None, use_errno=True).prctl
        self.prctl(DUMPABLE, 0, 0, 0, 0)
        self.running: dict[int, int] = {}  # id of a command's process -> its status pipe
        self.wake, write = os.pipe()
        for end in (self.wake, write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        self.control.send(b"ready")
        while True:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            poll.register(self.wake, select.POLLIN)
            for status in self.running.values():
                poll.register(status, 0)  # an error as soon as the caller has closed its end
            ready = dict(poll.poll(EVERY_MS if self.find_processes() else None))
            if self.wake in ready:
                os.read(self.wake, 4096)
            self.reap()
            for pid, status in list(self.running.items()):
                if status in ready:
                    self.stop_session(pid)
            if self.control.fileno() in ready:
                self.take()
            if exceeded := self.find_exceeded():
                self.stop_all(exceeded)

    def take(self) -> None:
        message, fds, _, _ = socket.recv_fds(self.control, 1 << 20, 4)
        if not message:
            os._exit(0)
        if message == b"stop":
            self.stop_all("stopped")
            self.control.send(b"stopped")
            return
        header, *argv = message.split(b"\0")
        stdin, stdout, stderr, status = fds
        try:
            pid = os.fork()
        except OSError:
            self.answer(status, {"exit": 126, "ended": "processes"})
        else:
            if pid == 0:
                self.become(argv, json.loads(header), (stdin, stdout, stderr))
            self.running[pid] = status
        for fd in (stdin, stdout, stderr):
            os.close(fd)

    def become(self, argv: list[bytes], header: dict[str, Any], fds: tuple[int, ...]) -> NoReturn:
        """Turn into the command, with no descriptor and no right that is not its own."""
        try:
            os.setsid()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            os.closerange(3, 1024)
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(each, signal.SIG_DFL)
            self.prctl(DUMPABLE, 1, 0, 0, 0)
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
            for name, most in self.limits["each"].items():
                resource.setrlimit(getattr(resource, name), (most, most))
            os.chdir(header["cwd"])
            os.execvp(argv[0], argv)
        except BaseException as error:
            os.write(2, f"{argv[0].decode(errors='replace')}: {getattr(error, 'strerror', None) or error}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def reap(self) -> None:
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.running:
                self.answer(self.running.pop(pid), {"exit": os.waitstatus_to_exitcode(code), "ended": ""})

    def answer(self, status: int, reply: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the caller has gone
            os.write(status, json.dumps(reply).encode())
        os.close(status)

    def stop_session(self, session: int) -> None:
        """End what a command started, unless that has left its session. Its caller has gone."""
        for pid, fields in self.find_processes():
            if int(fields[3]) == session:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        os.close(self.running.pop(session))

    def stop_all(self, why: str) -> None:
        """End everything but this process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        for pid in list(self.running):
            self.answer(self.running.pop(pid), {"exit": 137, "ended": why})
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            pass

    def find_processes(self) -> list[tuple[int, list[bytes]]]:
        """The ids of all others, with the fields of their `stat` behind the name."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        found.append((int(name), file.read().rpartition(b") ")[2].split()))
                except OSError:
                    pass  # it has ended
        return found

    def find_exceeded(self) -> str | None:
        """What is used up, by its name in the limits."""
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
        if sum(each.f_files - each.f_ffree for each in map(os.statvfs, WRITABLE)) > self.limits["files"]:
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


if __name__ == "__main__":
    Init(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])).serve()
