"""One command in a sandbox as seen from outside: four pipes, of which the last says how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 1 << 16


@dataclass(frozen=True)
class CommandResult:
    """The outcome of a command. `ended` is what ended it, if it did not end by itself: time, output, or a limit of the
    sandbox (memory, cpu, files, processes)."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    ended: str = ""


class PipedCall:
    """The pipes of a call, its own alone: nothing that runs inside can answer for another.

    Whoever takes `theirs` writes the exit code, and the limit that ended the command, into the status pipe, and ends
    the command as soon as this side has closed it.
    """

    def __init__(self, stdin: bytes, most: int) -> None:
        pairs = [os.pipe() for _ in range(4)]
        self.theirs = (pairs[0][0], pairs[1][1], pairs[2][1], pairs[3][1])
        self._stdin = pairs[0][1]
        self._readers = (pairs[1][0], pairs[2][0], pairs[3][0])
        for fd in (self._stdin, *self._readers):
            os.set_blocking(fd, False)
        self._left = memoryview(stdin)
        self._most = most
        self._read = {fd: bytearray() for fd in self._readers}

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)

    async def finish(self, seconds: float) -> CommandResult | None:
        """The result; None if nobody is left who could give one. Cancelling this ends the command."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = loop.create_future()

        def end(why: str) -> None:
            if not over.done():
                over.set_result(why)

        stdout, stderr, _status = self._readers
        for fd in self._readers:
            loop.add_reader(fd, self._take, fd, end, loop.remove_reader)
        loop.add_writer(self._stdin, self._feed, loop.remove_writer)
        timer = loop.call_later(seconds, end, "time")
        try:
            why = await over
            for fd in (stdout, stderr):  # what was written before the end
                self._take(fd, end, lambda fd: True)
        finally:
            timer.cancel()
            for fd in self._readers:
                loop.remove_reader(fd)
                os.close(fd)
            self._close_stdin(loop.remove_writer)
        return self._result(why)

    def _result(self, why: str) -> CommandResult | None:
        stdout, stderr, status = (bytes(self._read[fd]) for fd in self._readers)
        if why:
            return CommandResult(137, stdout[: self._most], stderr[: self._most], why)
        if not status:
            return None
        exit_code, _, limit = status.decode().partition(" ")
        too_much = len(stdout) > self._most or len(stderr) > self._most
        ended = limit or ("output" if too_much else "")
        return CommandResult(int(exit_code), stdout[: self._most], stderr[: self._most], ended)

    def _take(self, fd: int, end: Callable[[str], None], remove: Callable[[int], bool]) -> None:
        read = self._read[fd]
        with contextlib.suppress(BlockingIOError):
            while len(read) <= self._most:
                data = os.read(fd, CHUNK)
                if not data:
                    remove(fd)
                    break
                read += data
        if fd == self._readers[2]:
            end("")
        elif len(read) > self._most:
            remove(fd)
            end("output")

    def _feed(self, remove: Callable[[int], bool]) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._stdin, self._left[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # the command does not want to know
        self._close_stdin(remove)

    def _close_stdin(self, remove: Callable[[int], bool]) -> None:
        if self._stdin >= 0:
            remove(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
