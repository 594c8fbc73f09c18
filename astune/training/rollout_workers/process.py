"""The engine's side of one worker: its process, what it is at, and what it asks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from functools import partial

from astune.rollout.rounds import Due, Rounds, Ticket
from astune.rollout.setup import Attempt, late_before
from astune.rollout.time_limit import CANCEL_GRACE
from astune.support.http.child_server import child_environment, pipe
from astune.token_ids import TokenIds
from astune.training.rollout_workers.messages import (
    CutOff,
    EngineFailure,
    FrameReader,
    FromWorker,
    Leave,
    ModelCall,
    Ready,
    Start,
    StopAttempt,
    ToWorker,
    Work,
    WorkerReply,
    frame,
    read_episode,
)
from astune.training.rollout_workers.output import repeat
from astune.types import Episode, Generation, Policy
from astune.workflow.lifetime import TEARDOWN_SECONDS
from astune.workflow.notes import Notes

LEAVE_SECONDS = TEARDOWN_SECONDS + 10.0
"""Time for a worker to end that was told to."""
STOP_SECONDS = CANCEL_GRACE + 5.0
"""Time for an attempt to end that was cancelled: its workflow's, and its environment's."""


class EpisodeProcess:
    """A `PoolWorker` that is a process of this machine."""

    machine = "this one"

    def __init__(self, start: Start, policy: Policy, rounds: Rounds | None, notes: Notes, name: str) -> None:
        self._start, self._policy, self._rounds, self._notes, self._name = start, policy, rounds, notes, name
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[str] = self._loop.create_future()
        """The error that kept the worker from being set up; "" if it is."""
        self.ended = asyncio.Event()
        self._attempts: dict[int, tuple[Attempt, asyncio.Future[Episode | EngineFailure | None]]] = {}
        self._calls: dict[int, asyncio.Task[None] | None] = {}
        self._unanswered: list[Ticket] = []
        self._new: list[tuple[int, Attempt]] = []
        self._answers: list[tuple[int, Generation | EngineFailure]] = []
        self._flushing = False
        self._leaving = False
        self._popen = subprocess.Popen(
            [sys.executable, "-m", __package__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is for the run, which tells it what to do
        )

    async def begin(self) -> str:
        given, gives = pipe(self._popen.stdin), pipe(self._popen.stdout)
        self._pipe, _ = await self._loop.connect_write_pipe(asyncio.Protocol, given)
        await self._loop.connect_read_pipe(lambda: FrameReader(self._receive, self._end), gives)
        self._send(self._start)
        if error := await asyncio.shield(self._begun):
            await self.ended.wait()
        return error

    @property
    def ready(self) -> bool:
        return self._begun.done() and not self._begun.result() and not self.ended.is_set()

    @property
    def load(self) -> int:
        """Attempts under way."""
        return len(self._attempts)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit(self) -> str:
        return self._begun.result() or self._how()

    def _how(self) -> str:
        code = self._popen.returncode
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def play(self, number: int, attempt: Attempt, late: asyncio.Event | None = None) -> Episode | None:
        ended: asyncio.Future[Episode | EngineFailure | None] = self._loop.create_future()
        self._attempts[number] = attempt, ended
        self._new.append((number, attempt))
        self._flush_soon()
        try:
            if await late_before(late, ended):
                self._flush()
                self._send(CutOff(number))
                await asyncio.wait({ended})
        except asyncio.CancelledError:
            self._flush()  # it may not have been sent yet
            self._send(StopAttempt(number))
            await asyncio.wait({ended}, timeout=STOP_SECONDS)
            raise
        episode = ended.result()
        if isinstance(episode, EngineFailure):
            raise episode.make_error()
        return episode

    async def leave(self) -> None:
        self._leaving = True
        self._send(Leave())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ended.wait(), LEAVE_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._leaving = True
        self._popen.kill()
        self._popen.wait()

    def _send(self, message: ToWorker) -> None:
        if not self._pipe.is_closing():  # else it has died, which is soon heard of
            self._pipe.write(frame(message))

    def _flush_soon(self) -> None:
        """Put answers that the engine gives at once into one message."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not (self._new or self._answers) or self._popen.returncode is not None:
            return
        ticket = None
        if self._rounds is not None:
            ticket = self._rounds.open(waited_for=all(map(self._rounds.is_open, self._unanswered)))
            self._unanswered.append(ticket)
        self._send(Work(ticket, tuple(self._new), tuple(self._answers)))
        self._new, self._answers = [], []

    def _receive(self, message: FromWorker) -> None:
        if isinstance(message, WorkerReply):
            self._take_reply(message)
        elif isinstance(message, Ready):
            self._begun.set_result(message.error)
        else:
            repeat(message, self._notes, self._name)

    def _take_reply(self, reply: WorkerReply) -> None:
        for number in reply.given_up:
            task = self._calls.pop(number, None)
            if task is not None:
                task.cancel()
        due: list[Due] = []
        for number, data in reply.ended:
            attempt, ended = self._attempts.pop(number)
            episode = read_episode(data, attempt) if isinstance(data, bytes) else data
            due.append(((0, number), partial(ended.set_result, episode)))
        for call in reply.calls:
            if call.number not in reply.given_up:
                self._calls[call.number] = None
                due.append(((1, call.sampling.seed or 0, call.number), partial(self._call, call)))
        if reply.ticket is not None and self._rounds is not None:
            self._unanswered.remove(reply.ticket)
            self._rounds.close(reply.ticket, due)
        else:
            for _, do in due:
                do()

    def _call(self, call: ModelCall) -> None:
        if call.number in self._calls:
            self._calls[call.number] = self._loop.create_task(self._answer(call))

    async def _answer(self, call: ModelCall) -> None:
        answer: Generation | EngineFailure
        try:
            answer = await self._policy.generate(TokenIds.from_packed(call.prompt), call.sampling)
        except Exception as error:
            answer = EngineFailure.of(error)
        self._calls.pop(call.number, None)
        self._answers.append((call.number, answer))
        self._flush_soon()

    def _end(self) -> None:
        """The process has closed its end: it has ended, or is about to."""
        if not self._leaving:
            self._popen.kill()
        self._popen.wait()
        for task in self._calls.values():
            if task is not None:
                task.cancel()
        self._calls.clear()
        attempts, self._attempts = self._attempts, {}
        for _, ended in attempts.values():
            ended.set_result(None)
        for ticket in self._unanswered:
            assert self._rounds is not None
            self._rounds.close(ticket)
        self._unanswered.clear()
        if not self._begun.done():
            self._begun.set_result(f"a worker of astune.rollout.workers died as it began: {self._how()}")
        self.ended.set()
