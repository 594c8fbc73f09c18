"""The border between the training loop and what computes for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import TrainingError
from astune.rollout.past_versions import VersionPlaces
from astune.rollout.rounds import Rounds
from astune.rollout.setup import Player
from astune.types import Policy, Sample, Update
from astune.workflow.notes import Notes


class Learner(Protocol):
    """The only thing a training loop needs from the side that holds the weights.

        update = await learner.update(samples, learning_rate)   # as often as a step says
        version = await learner.publish()                       # from now on the policy samples from what came of it

    `update` and `publish` may compute elsewhere and take their time; the loop awaits one before it calls the next.
    """

    @property
    def updates(self) -> int:
        """The number of updates that the run has had, skipped ones included: schedules of learning rates go by it.
        Saved and loaded with the weights."""

    @property
    def changes(self) -> int:
        """The number of changes of the weights, counted before each change: as long as this is what it was, so are
        they, also after an `update` that was broken off."""

    @property
    def policy_version(self) -> int:
        """The version of the weights that the policy samples from. Saved and loaded with them."""

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        """Take one optimizer step over `samples`, whose weights sum to 1 (see `Sample`)."""

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        """The log-probability, under the weights as they are now, of each sample's tokens with weight, in their
        order; with `reference` under those that the run began with."""

    async def publish(self) -> int:
        """Make the weights as they are now what the policy samples from, with nothing cached of what it computed
        before. Returns the policy version: a new one if the weights changed since the last time."""

    def save(self, directory: Path) -> None:
        """Write the model as a Hugging Face folder, and beside it all else that `load` needs to go on bit for bit.
        Raises OSError where the disk does not take it."""

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote. Raises RunFolderError where that is broken or of another model."""


def close_nothing() -> None: ...


async def wait_forever() -> TrainingError:
    nothing: asyncio.Future[TrainingError] = asyncio.get_running_loop().create_future()
    return await nothing


T = TypeVar("T")


async def await_unless_lost(work: Awaitable[T], lost: Awaitable[TrainingError]) -> T:
    """Await `work`. Raises the error of `lost` if that comes first; `work` is then broken off."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(lost)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise gone.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)  # what they say of it is not news


@dataclass(frozen=True)
class Engine:
    """A model that can be sampled from and trained, wherever that happens: all that the loop knows of a backbone.

    `policy` samples from the weights that `learner` published last. `rounds` keep agents in other processes in step
    with the policy; None where it goes on whatever they do. `close` lets go of what the engine holds outside this
    process, and may be called twice. `lost` waits until a part of it out there is gone, and gives the error that says
    which: nothing can come of the run then. `player` makes what plays the episodes of `astune.rollout.workers`, which
    need not ask `policy`, but whatever answers for it, and holds their calls itself (`Player.hold_calls`); None where
    they are processes of this machine and do."""

    policy: Policy
    learner: Learner
    chat_format: ChatFormat
    rounds: Rounds | None = None
    beside: bool = False
    """True if answers may be under way during `Learner.update`; never during `publish`."""
    close: Callable[[], None] = close_nothing
    lost: Callable[[], Awaitable[TrainingError]] = wait_forever
    player: Callable[[AstuneConfig, Notes], Player] | None = None
    models: Mapping[str, Learner] = field(default_factory=dict)
    """With `astune.models`, the learner of each that is trained. `policy` answers for all (`Sampling.model`), and
    `learner` is the first of them."""
    places: Mapping[str, VersionPlaces] = field(default_factory=dict)
    """Room for the versions of those that are earlier versions of another."""

    @property
    def learners(self) -> Mapping[str, Learner]:
        """The learners by the names of their models; the only one has none."""
        return self.models or {"": self.learner}


LoadEngine: TypeAlias = Callable[[AstuneConfig], Engine]
