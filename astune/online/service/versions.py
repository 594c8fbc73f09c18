"""Which version of the model answers. New ones are loaded beside the one that answers, and take over when they are
there: requests that begin then get the new weights, those under way end on the old ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from astune.store.database import Database
from astune.store.versions import ModelVersion, newest
from astune.types import Generation, Policy, Sampling

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""From one try to load a version to the next."""


class LoadVersion(Protocol):
    """Load a version, in a thread: a policy whose answers say its number. Raises AstuneError where it cannot."""

    def __call__(self, version: ModelVersion) -> Policy: ...


class ServedVersions:
    """Decides per conversation which version answers: the newest.

    Each version has a policy of its own, so that both are in memory until the last request on the older one has ended.
    """

    def __init__(self, database: Database, load: LoadVersion, clock: Callable[[], float]) -> None:
        self._database, self._load, self._clock = database, load, clock
        self._number = -1
        self._policy: Policy | None = None
        self._failed: tuple[int, float] | None = None
        self.failures = 0
        """Times a version could not be loaded."""

    @property
    def newest(self) -> int:
        """The version that answers now; -1 before `open`."""
        return self._number

    @property
    def context_length(self) -> int:
        return self._now.context_length

    @property
    def _now(self) -> Policy:
        assert self._policy is not None, "open() comes first"
        return self._policy

    def open(self) -> None:
        """Load the newest version. Raises AstuneError where that cannot be."""
        version = self._newest()
        self._policy, self._number = self._load(version), version.number

    async def poll(self) -> bool:
        """Whether there is a newer version, and it answers now. One that cannot be loaded changes nothing; it is tried
        again after a while."""
        version = await asyncio.to_thread(self._newest)
        failed, again = self._failed or (-1, 0.0)
        if version.number <= self._number or (version.number == failed and self._clock() < again):
            return False
        try:
            policy = await asyncio.to_thread(self._load, version)
        except Exception as error:
            self.failures += 1
            self._failed = version.number, self._clock() + RETRY_SECONDS
            logger.error("version %d is not served, version %d goes on: %s", version.number, self._number, error)
            return False
        self._policy, self._number = policy, version.number
        logger.info("version %d answers", version.number)
        return True

    def of(self, conversation_id: str) -> Policy:
        """What answers in this conversation now."""
        return self._now

    def _newest(self) -> ModelVersion:
        with self._database.reading() as connection:
            return newest(connection)


class ConversationPolicy:
    """The policy of one conversation's tracker: each call is answered by the version that is decided on then."""

    def __init__(self, versions: ServedVersions, conversation_id: str) -> None:
        self._versions, self._conversation_id = versions, conversation_id

    @property
    def context_length(self) -> int:
        return self._versions.of(self._conversation_id).context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        return await self._versions.of(self._conversation_id).generate(prompt_ids, sampling)
