"""Rollouts that go on while the model is trained (`astune.synchronizer.style: async`).

    step        0        1        2        3            astune.synchronizer.max_staleness: 1
    play      [0  ][1           ][2      ][3      ]     the tasks of a step are those that it has in any run
    train           [0 ]          [1 ]    [2 ]  [3 ]    the episodes of step k begin once step k - 2 is trained
    version   0         1             2       3     4

Invariant: the episodes of step k begin under the weights of step k - `max_staleness` or newer ones. So no token that is
trained is older than that, and nothing is ever thrown away because it is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count

from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, InvariantError
from astune.rollout.group import Limit, OnEpisode
from astune.training.engine import Engine
from astune.training.run import Ahead, TrainingRun, play_groups
from astune.types import Episode, Generation, Group, Policy, Sampling

FIRST = -1
"""The rank of evaluations: training waits for them."""


class Gate:
    """A `Policy` in front of the engine's, through which calls pass unless it is shut: weights change between two
    answers, never within one.

    Invariant: within `hold_calls` no answer is under way, so that all tokens of an answer are of one policy version. An
    episode goes on under the new one with its next call.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._under_way = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()

    @property
    def context_length(self) -> int:
        return self._policy.context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        await self._open.wait()
        self._under_way += 1
        try:
            return await self._policy.generate(prompt_ids, sampling)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def close(self) -> None:
        """Wait until the answers under way have ended; calls that come meanwhile wait until `open`."""
        self._open.clear()
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    def open(self) -> None:
        self._open.set()

    @asynccontextmanager
    async def hold_calls(self) -> AsyncIterator[None]:
        """Keep it closed while this is entered."""
        try:
            await self.close()
            yield
        finally:
            self.open()


def put_gate(config: AstuneConfig, engine: Engine) -> tuple[Engine, Gate]:
    """Put a gate in front of the engine's policy. Raises ConfigError for one whose learner needs the policy to
    rest."""
    if not engine.beside:
        raise ConfigError(
            "astune.synchronizer.style: got 'async', but the engine of this backbone cannot answer while it learns; "
            "expected 'fixed'"
        )
    gate = Gate(engine.policy)
    return replace(engine, policy=gate), gate


class Places:
    """At most `number` are taken at a time. Who waits goes by rank, the lowest first, and then by who came first.

    async with places.of(rank):
        ...
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._numbers = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def of(self, rank: int) -> Place:
        """To be entered as often as there is work of that rank."""
        return Place(self, rank)

    async def take(self, rank: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the place as it was cancelled
                self.give()
            raise

    def give(self) -> None:
        """A place goes to who is next, and is free only where nobody waits."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


@dataclass(frozen=True)
class Place:
    places: Places
    rank: int

    async def __aenter__(self) -> None:
        await self.places.take(self.rank)

    async def __aexit__(self, *exc_info: object) -> None:
        self.places.give()


class RolloutsAhead(Ahead):
    """Plays the steps of a run, up to `max_staleness` ahead of the one that is trained, while it is entered.

    Episodes under way, all steps and evaluations together, are at most `astune.rollout.max_concurrent`; those of
    earlier steps begin first. What was played and not trained when the run stops is played again when it goes on.
    """

    def __init__(self, run: TrainingRun, gate: Gate) -> None:
        most = run.config.synchronizer.max_staleness
        assert most is not None, "astune.config.rules asks for it"
        self._run, self._gate, self._most = run, gate, most
        self._places = Places(run.config.rollout.max_concurrent)
        self._steps: dict[int, asyncio.Task[tuple[list[Group], dict[str, float]]]] = {}
        self._begun: Counter[int] = Counter()
        self._ended: Counter[int] = Counter()
        """Episodes by step."""

    async def __aenter__(self) -> RolloutsAhead:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for task in self._steps.values():
            task.cancel()
        await asyncio.gather(*self._steps.values(), return_exceptions=True)

    @asynccontextmanager
    async def between_answers(self) -> AsyncIterator[None]:
        assert self._run.setup is not None, "rollouts are ahead only where episodes are played"
        player, this = self._run.setup.player, asyncio.current_task()
        assert this is not None
        async with AsyncExitStack() as stack:
            try:
                if player is not None:
                    await stack.enter_async_context(player.hold_calls())
                await stack.enter_async_context(self._gate.hold_calls())
            except asyncio.CancelledError:
                # nothing of what is under way will be learned, but the step that was is published, counted and saved
                await self._stop()
                this.cancel()
            yield

    def places(self, step: int | None) -> Limit:
        return self._places.of(FIRST if step is None else step)

    async def groups(self) -> tuple[list[Group], dict[str, float]]:
        run, step = self._run, self._run.step
        for number in range(step, min(step + self._most + 1, run.total_steps)):
            if number not in self._steps:
                self._steps[number] = asyncio.create_task(play_groups(run, number))
        run.progress.phase_started("rollout", self._begun[step], self._ended[step])
        groups, figures = await self._steps[step]
        del self._steps[step], self._begun[step], self._ended[step]
        return groups, figures | self._ages(groups)

    def show(self, phase: str, number: int, step: int | None) -> OnEpisode:
        progress = self._run.progress
        if step is None:
            progress.phase_started(phase, number)
            return progress.episode_done
        self._begun[step] += number

        def count_end(episode: Episode) -> None:
            self._ended[step] += 1
            progress.episode_done(episode, ahead=step != self._run.step)

        if step == self._run.step:
            progress.phase_started(phase, self._begun[step], self._ended[step])
        return count_end

    def _ages(self, groups: Sequence[Group]) -> dict[str, float]:
        """Count the episodes that went on under newer weights than they began with. Raises InvariantError where one is
        older than may be."""
        spanning = 0
        newest = {name: pupil.learner.policy_version for name, pupil in self._run.pupils.items()}
        for group in groups:
            for episode in group.episodes:
                versions = {(turn.model, turn.policy_version) for turn in episode.turns if turn.model in newest}
                spanning += len(versions) > len({model for model, _ in versions})
                for model, version in versions:
                    if newest[model] - version > self._most:
                        raise InvariantError(
                            f"episode {episode.episode_id} began under policy version {version}, and the one in "
                            f"training is {newest[model]}: more than astune.synchronizer.max_staleness = {self._most} "
                            "behind"
                        )
        return {"episodes/spanning_versions": float(spanning)}
