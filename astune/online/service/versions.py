"""The versions that a server holds: the champion, a challenger that is tested, those that conversations keep.

The champion is an alias that moves forth and back. It is loaded beside what answers and takes over when it is there:
requests under way end on the weights that they began on. A version that nobody needs leaves memory when its last
request has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from astune.errors import ModelError, RunFolderError
from astune.online.store import audit
from astune.online.store.assignments import Decision, LastAnswer, TrafficPlan, decide, load_plan
from astune.online.store.versions import NOT_SERVED, SERVED, ModelVersion, find
from astune.store.database import Database
from astune.support.http.service import HttpError
from astune.types import Generation, Policy, Sampling

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""From one try to load a version to the next."""


class NoRoom(ModelError):
    """A version that does not fit into memory beside those that are there."""


class LoadVersion(Protocol):
    """Load a version, in a thread: a policy whose answers say its number. Raises AstuneError where it cannot."""

    def __call__(self, version: ModelVersion) -> Policy: ...


@dataclass(eq=False)
class HeldVersion:
    """A version in memory. `users` are requests under way, `used` is when the last one ended."""

    number: int
    policy: Policy
    users: int = 0
    used: float = -math.inf


@dataclass(eq=False)
class Answering:
    """A request under way. `policy` is None as soon as it has ended: tasks that it started may live on."""

    decision: Decision
    policy: Policy | None


_ANSWERING: ContextVar[Answering | None] = ContextVar("answering", default=None)


class ServedVersions:
    """Decides per request which version answers. All but `poll` and `answering` may be called before an event loop.

    At most `most` versions are in memory. `may_load` is asked before another one is loaded because the champion or the
    challenger changed; `clock` is in seconds since any moment.
    """

    def __init__(
        self,
        database: Database,
        load: LoadVersion,
        most: int = 3,
        pin_seconds: float = 1800.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        may_load: Callable[[], AbstractAsyncContextManager[bool]] = lambda: nullcontext(True),
    ) -> None:
        self._database, self._load, self._clock = database, load, clock
        self._most, self._pin_seconds, self._may_load = most, pin_seconds, may_load
        self._plan = TrafficPlan(0, (0,))
        self._held: dict[int, HeldVersion] = {}
        self._leaving: set[HeldVersion] = set()
        """Dropped while requests were under way on them."""
        self._left = asyncio.Event()
        self._loading = asyncio.Lock()
        self._returning: dict[int, asyncio.Task[bool]] = {}
        """Versions that conversations keep and that are loaded again."""
        self._failed: dict[int, float] = {}
        """Versions that could not be loaded, and when to try again."""
        self.serving = -1
        """The version that answers where nothing else is decided; -1 before `open`."""
        self.failures = 0
        """Times a version could not be loaded."""
        self.answers = 0
        """That were given, by any version."""

    @property
    def held(self) -> list[int]:
        """The versions in memory."""
        return sorted(self._held)

    @property
    def not_served(self) -> int | None:
        """The champion, while it cannot be loaded and another version answers in its place."""
        return self._plan.champion if self._plan.champion in self._failed else None

    @property
    def trouble(self) -> Mapping[str, int]:
        """For replies: `not_served`, where there is one."""
        return {} if self.not_served is None else {"not_served": self.not_served}

    @property
    def context_length(self) -> int:
        """The longest of all versions in memory."""
        return max(each.policy.context_length for each in self._held.values())

    @property
    def current(self) -> Policy:
        """The policy of the request that asks; without one that of the version that answers."""
        answering = _ANSWERING.get()
        if answering is not None and answering.policy is not None:
            return answering.policy
        assert self._held, "open() comes first"
        return self._held[self.serving].policy

    def open(self) -> None:
        """Load the champion, or the nearest whole version that it was made from. Raises AstuneError where that cannot
        be."""
        self._plan = self._database.read(load_plan)
        errors: list[tuple[int, Exception]] = []
        for number in self._plan.path:
            try:
                self._held[number] = self._load_number(number)
            except Exception as error:
                errors.append((number, error))
                if not isinstance(error, RunFolderError):
                    break
                continue
            self.serving = number
            self._tell(errors, number)
            return
        raise errors[-1][1]

    async def poll(self) -> bool:
        """Load what is to answer now; true if another version is what answers from now on. A version that cannot be
        loaded changes nothing and is tried again after a while."""
        self._plan = plan = await asyncio.to_thread(self._database.read, load_plan)
        changed = await self._serve_champion(plan)
        self._drop_unused()
        if plan.release is not None and plan.release.challenger not in self._held:
            async with self._may_load() as may:
                if may:
                    await self._bring([plan.release.challenger])
        return changed

    async def _serve_champion(self, plan: TrafficPlan) -> bool:
        if self.serving == plan.champion:
            return False
        found: int | None = plan.champion
        if found not in self._held:
            numbers, is_harmful = self._candidates(plan), plan.is_rolled_back(self.serving)
            async with nullcontext(True) if is_harmful else self._may_load() as may:
                found = await self._bring(numbers) if may else None
        if found is None or found == self.serving:
            return False
        self.serving = found
        logger.info("version %d answers", found)
        return True

    def _candidates(self, plan: TrafficPlan) -> Sequence[int]:
        """The champion and, should its files be broken, what may answer in its place: what it was made from, as far as
        that is better than what answers now."""
        if self.serving in plan.path:
            return plan.path[: plan.path.index(self.serving)]
        return plan.path if plan.is_rolled_back(self.serving) else plan.path[:1]

    async def _bring(self, numbers: Sequence[int]) -> int | None:
        """The first of them that is in memory or could be loaded now. The one before a damaged one may be whole; what
        else went wrong would go wrong with it as well."""
        if self._clock() < self._failed.get(numbers[0], -math.inf):
            return None
        errors: list[tuple[int, Exception]] = []
        found: int | None = None
        async with self._loading:
            for number in numbers:
                if number not in self._held:
                    try:
                        self._held[number] = await self._load_beside(number)
                    except Exception as error:
                        errors.append((number, error))
                        if isinstance(error, RunFolderError):
                            continue
                        break
                found = number
                break
        if errors or found in self._failed:
            await asyncio.to_thread(self._tell, errors, found)
        return found

    async def _load_beside(self, number: int) -> HeldVersion:
        await self._make_room()
        try:
            return await asyncio.to_thread(self._load_number, number)
        except NoRoom:
            if not await self._make_room(for_sure=True):
                raise
            return await asyncio.to_thread(self._load_number, number)

    def _load_number(self, number: int) -> HeldVersion:
        with self._database.reading() as connection:
            version = find(connection, number)
        if version is None:
            raise RunFolderError(f"there is no version {number}")
        return HeldVersion(number, self._load(version))

    async def _make_room(self, *, for_sure: bool = False) -> bool:
        """Drop versions until there is room for one more, `for_sure` all that new conversations do not get. Return once
        their last requests have ended; true if any was dropped."""
        others = [each for each in self._held.values() if each.number != self.serving]
        others.sort(key=lambda each: (each.number in self._plan.wanted, each.users > 0, each.used))
        if for_sure:
            going = [each for each in others if each.number not in self._plan.wanted]
        else:
            going = others[: max(0, len(self._held) - self._most + 1)]
        for held in going:
            self._drop(held)
        while self._leaving and (for_sure or len(self._held) + len(self._leaving) >= self._most):
            self._left.clear()
            await self._left.wait()
        return bool(going)

    def _drop(self, held: HeldVersion) -> None:
        del self._held[held.number]
        if held.users:
            self._leaving.add(held)

    def _drop_unused(self) -> None:
        """Drop what was rolled back, and what no conversation can keep any more."""
        since = self._clock() - self._pin_seconds
        for held in list(self._held.values()):
            if held.number == self.serving or held.number in self._plan.wanted or held.users:
                continue
            if self._plan.is_rolled_back(held.number) or held.used < since:
                self._drop(held)

    def _tell(self, errors: Sequence[tuple[int, Exception]], loaded: int | None) -> None:
        """Say in the log and in the audit which versions cannot be loaded, and which of those is there now."""
        self.failures += len(errors)
        answers = self.serving if loaded is None else loaded
        new = [(number, error) for number, error in errors if number not in self._failed]
        again = loaded if self._failed.pop(loaded if loaded is not None else -1, None) is not None else None
        for number, error in errors:
            self._failed[number] = self._clock() + RETRY_SECONDS
            logger.error("version %d is not served, version %d answers: %s", number, answers, error)
        with self._database.writing() as connection:
            for number, error in new:
                audit.say(connection, "serve", NOT_SERVED, str(number), answers=answers, why=str(error))
            if again is not None:
                audit.say(connection, "serve", SERVED, str(again))

    @asynccontextmanager
    async def answering(
        self, unit: str, last: LastAnswer | None, now: float, asked_for: int | None = None
    ) -> AsyncIterator[Answering]:
        """Around the work on a request: `current` is the version that was decided on, which stays in memory until the
        end. `last` is the conversation's last answer, `now` the time in seconds since 1970.

        Raises:
            HttpError: 409, the version that is `asked_for` cannot be loaded.
        """
        chosen = Decision(asked_for, kept=True) if asked_for is not None else None
        decision = chosen or decide(self._plan, unit, last, now, self._pin_seconds)
        while decision.version not in self._held and decision.kept:
            if not await self._return(decision.version):
                break
        if decision.version not in self._held:
            if asked_for is not None:
                raise HttpError(409, "version_not_served", f"version {asked_for} cannot be loaded: see the audit")
            decision = Decision(self.serving)
        held = self._held[decision.version]
        held.users += 1
        answering = Answering(decision, held.policy)
        token = _ANSWERING.set(answering)
        try:
            yield answering
        finally:
            _ANSWERING.reset(token)
            answering.policy = None
            held.users, held.used = held.users - 1, self._clock()
            if not held.users and held in self._leaving:
                self._leaving.discard(held)
                self._left.set()

    async def _return(self, number: int) -> bool:
        """Load a version that a conversation keeps, once for all that wait for it, even if they go away. False where it
        cannot be loaded; else it is there now, or was, and had to leave for another one."""
        if number not in self._returning:
            task = self._returning[number] = asyncio.create_task(self._bring_back(number))
            task.add_done_callback(lambda _: self._returning.pop(number, None))
        return await asyncio.shield(self._returning[number])

    async def _bring_back(self, number: int) -> bool:
        is_there = await self._bring([number]) is not None
        if is_there and number in self._held:
            self._held[number].used = self._clock()
        return is_there


class ConversationPolicy:
    """The policy of one conversation's tracker: each call is answered by the version that is decided on then."""

    def __init__(self, versions: ServedVersions) -> None:
        self._versions = versions

    @property
    def context_length(self) -> int:
        return self._versions.current.context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        said = await self._versions.current.generate(prompt_ids, sampling)
        self._versions.answers += 1
        return said
