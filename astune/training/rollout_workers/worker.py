"""The worker's side: plays attempts around a policy that is asked elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, WorkflowError, name_error
from astune.rollout.episode import play_episode
from astune.rollout.rounds import Ticket
from astune.rollout.setup import Attempt, RolloutSetup
from astune.token_ids import TokenIds
from astune.training.rollout_setup import workflow_setup
from astune.training.rollout_workers.messages import (
    EngineFailure,
    ModelCall,
    Noted,
    Send,
    Work,
    WorkerReply,
    pack_episode,
)
from astune.types import Episode, EpisodeError, Generation, Sampling, StopReason
from astune.workflow.notes import Notes

logger = logging.getLogger(__name__)

QUIET_PASSES = 48
"""Passes of the event loop in which no agent asks anything and no episode ends, after which all count as waiting."""


class EpisodeWorker:
    """Plays attempts at the tasks of a run, in any process with an event loop: `send` carries what goes back, and
    whoever holds the worker gives it what came for it.

    `Work` is taken in one by one, the next when every agent waits, so that what a reply holds does not depend on when
    messages come. `setup` has the workflow, to be opened before the first attempt.
    """

    def __init__(self, config: AstuneConfig, chat_format: ChatFormat, context_length: int, send: Send) -> None:
        policy = RemotePolicy(context_length, self._ask)
        self.setup = replace(workflow_setup(config, policy, chat_format), notes=ForwardedNotes(send))
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._late: dict[int, asyncio.Event] = {}
        """Of every attempt that is here."""
        self._stopped: set[int] = set()
        """Attempts that were cancelled before they began."""
        self._answers: dict[int, asyncio.Future[Generation]] = {}
        self._numbers = count()
        self._did = 0
        """Calls made and episodes ended so far."""
        self._calls: list[ModelCall] = []
        self._given_up: list[int] = []
        self._ended: list[tuple[int, bytes | EngineFailure | None]] = []
        self._work: deque[Work] = deque()
        self._working: asyncio.Task[None] | None = None
        self._flushing = False

    def take(self, work: Work) -> None:
        """Begin attempts and hand out answers, as soon as the agents have done what came of the work before."""
        self._work.append(work)
        self._late |= {number: asyncio.Event() for number, _ in work.attempts}
        if self._working is None or self._working.done():
            self._working = self._loop.create_task(self._work_through())

    def stop(self, attempt: int) -> None:
        """Cancel an attempt, if it has not ended."""
        if attempt in self._attempts:
            self._attempts[attempt].cancel()
        elif any(number == attempt for work in self._work for number, _ in work.attempts):
            self._stopped.add(attempt)

    def cut_off(self, attempt: int) -> None:
        """End an attempt that is late, if it has not ended."""
        if attempt in self._late:
            self._late[attempt].set()

    async def stop_all(self) -> None:
        for task in self._attempts.values():
            task.cancel()
        await asyncio.gather(*self._attempts.values(), return_exceptions=True)

    async def _work_through(self) -> None:
        while self._work:
            work = self._work.popleft()
            for number, attempt in work.attempts:
                if number in self._stopped:
                    del self._late[number]
                    self._ended.append((number, None))
                else:
                    self._attempts[number] = self._loop.create_task(self._play(number, attempt))
            for number, answer in work.answers:
                self._hand_out(number, answer)
            if work.ticket is not None:
                await self._quiet()
            self._reply(work.ticket)

    async def _quiet(self) -> None:
        quiet = 0
        while quiet < QUIET_PASSES:
            before = self._did
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._did == before else 0

    def _hand_out(self, number: int, answer: Generation | EngineFailure) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, EngineFailure):
            waiting.set_exception(answer.make_error())
        else:
            waiting.set_result(answer)

    async def _play(self, number: int, attempt: Attempt) -> None:
        data: bytes | EngineFailure | None = None
        try:
            data = await play_and_pack(attempt, self.setup, self._late[number])
        finally:
            del self._attempts[number], self._late[number]
            self._ended.append((number, data))
            self._act()

    async def _ask(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        number = next(self._numbers)
        self._calls.append(ModelCall(number, TokenIds.of(prompt_ids).pack(), sampling))
        answer: asyncio.Future[Generation] = self._loop.create_future()
        self._answers[number] = answer
        self._act()
        try:
            return await answer
        except asyncio.CancelledError:
            self._answers.pop(number, None)
            self._given_up.append(number)
            self._flush_soon()
            raise

    def _act(self) -> None:
        self._did += 1
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Tell what agents do on their own, as after an answer of a tool; the rest is told with the round."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._working is None or self._working.done():
            self._reply(None)

    def _reply(self, ticket: Ticket | None) -> None:
        if ticket is None and not (self._calls or self._given_up or self._ended):
            return
        self._send(WorkerReply(ticket, tuple(self._calls), tuple(self._given_up), tuple(self._ended)))
        self._calls, self._given_up, self._ended = [], [], []


@dataclass(frozen=True)
class RemotePolicy:
    """A `Policy` whose engine is in another process."""

    context_length: int
    ask: Callable[[Sequence[int], Sampling], Coroutine[Any, Any, Generation]]

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        return await self.ask(prompt_ids, sampling)


class ForwardedNotes(Notes):
    """Gives its warnings where the run is, which knows what other workers said."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def say(self, subject: str, text: str) -> None:
        self._send(Noted(subject, text))


async def play_and_pack(
    attempt: Attempt, setup: RolloutSetup, late: asyncio.Event | None = None
) -> bytes | EngineFailure:
    """The attempt, played here, cut off as soon as `late` is set, and packed for the way; or the error that stops
    the run."""
    try:
        return _pack(await play_episode(attempt, setup, late))
    except ConfigError as error:
        return EngineFailure.of(error)
    except Exception as error:
        logger.exception("%s could not be played", attempt.episode_id)
        return EngineFailure.of(error)


def _pack(episode: Episode) -> bytes:
    """Pack the episode for the way. One whose answer cannot be sent has failed."""
    try:
        return pack_episode(episode)
    except Exception as error:
        message = (
            f"the workflow's answer, of type {type(episode.output and episode.output.answer).__name__}, cannot be sent "
            f"from the process that played the episode (astune.rollout.workers): {name_error(error)}; return what "
            "pickle takes"
        )
        failed = EpisodeError("workflow", WorkflowError.__name__, message)
        return pack_episode(replace(episode, output=None, stop_reason=StopReason.ERROR, error=failed))
