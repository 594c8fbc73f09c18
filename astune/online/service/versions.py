"""The version of the model that answers, and newer ones that cannot be loaded.

New ones are loaded beside the one that answers, and take over when they are there: requests that begin then get the new
weights, those under way end on the old ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from astune.errors import RunFolderError
from astune.online.store import audit
from astune.online.store.versions import AS_CONFIGURED, NOT_SERVED, SERVED, ModelVersion, after
from astune.store.database import Database
from astune.types import Generation, Policy, Sampling

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""From one try to load a version to the next."""


class LoadVersion(Protocol):
    """Load a version, in a thread: a policy whose answers say its number. Raises AstuneError where it cannot."""

    def __call__(self, version: ModelVersion) -> Policy: ...


class ServedVersions:
    """Decides per conversation which version answers: the newest whose checkpoint is whole.

    Each version has a policy of its own, so that both are in memory until the last request on the older one has ended.
    `clock` is in seconds since any moment.
    """

    def __init__(self, database: Database, load: LoadVersion, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._load, self._clock = database, load, clock
        self._number = -1
        self._policy: Policy | None = None
        self._failed: tuple[int, float] | None = None
        self.failures = 0
        """Times a version could not be loaded."""
        self.answers = 0
        """That were given, by any version."""

    @property
    def newest(self) -> int:
        """The version that answers now; -1 before `open`."""
        return self._number

    @property
    def not_served(self) -> int | None:
        """The newest version, while it cannot be loaded and an older one answers in its place."""
        return None if self._failed is None else self._failed[0]

    @property
    def trouble(self) -> Mapping[str, int]:
        """For replies: `not_served`, where there is one."""
        return {} if self.not_served is None else {"not_served": self.not_served}

    @property
    def context_length(self) -> int:
        return self._now.context_length

    @property
    def _now(self) -> Policy:
        assert self._policy is not None, "open() comes first"
        return self._policy

    def open(self) -> None:
        """Load the newest version whose checkpoint is whole. Raises AstuneError where that cannot be."""
        loaded, errors = self._load_newest(self._newer())
        if not loaded:
            raise errors[-1][1]
        if errors:
            self._tell(errors)

    async def poll(self) -> bool:
        """Load a newer version, if there is one; true if it answers now. A version that cannot be loaded changes
        nothing and is tried again after a while."""
        newer = await asyncio.to_thread(self._newer)
        failed, again = self._failed or (-1, 0.0)
        if not newer or (newer[0].number == failed and self._clock() < again):
            return False
        loaded, errors = await asyncio.to_thread(self._load_newest, newer)
        if errors or self._failed:
            await asyncio.to_thread(self._tell, errors)
        if loaded:
            logger.info("version %d answers", self._number)
        return loaded

    def _newer(self) -> list[ModelVersion]:
        """The versions after the one that answers, the newest first."""
        with self._database.reading() as connection:
            made = after(connection, self._number)
        is_told = self._number >= 0 or any(version.number == 0 for version in made)
        return made if is_told else [*made, AS_CONFIGURED]

    def _load_newest(self, newer: Sequence[ModelVersion]) -> tuple[bool, list[tuple[ModelVersion, Exception]]]:
        """Tell whether one of them answers now, and those after it that cannot. The one before a damaged one may be
        whole; what else went wrong would go wrong with it as well."""
        errors: list[tuple[ModelVersion, Exception]] = []
        for version in newer:
            try:
                policy = self._load(version)
            except Exception as error:
                errors.append((version, error))
                if isinstance(error, RunFolderError):
                    continue
                return False, errors
            self._policy, self._number = policy, version.number
            return True, errors
        return False, errors

    def _tell(self, errors: Sequence[tuple[ModelVersion, Exception]]) -> None:
        """Say in the log, and of the newest version in the audit, what is not served, or that it is now."""
        before, self.failures = self.not_served, self.failures + len(errors)
        self._failed = (errors[0][0].number, self._clock() + RETRY_SECONDS) if errors else None
        for version, error in errors:
            logger.error("version %d is not served, version %d answers: %s", version.number, self._number, error)
        if before == self.not_served:
            return
        with self._database.writing() as connection:
            if errors:
                why = str(errors[0][1])
                audit.say(connection, "serve", NOT_SERVED, str(self.not_served), answers=self._number, why=why)
            else:
                audit.say(connection, "serve", SERVED, str(self._number))

    def of(self, conversation_id: str) -> Policy:
        """The policy that answers in this conversation now."""
        return self._now


class ConversationPolicy:
    """The policy of one conversation's tracker: each call is answered by the version that is decided on then."""

    def __init__(self, versions: ServedVersions, conversation_id: str) -> None:
        self._versions, self._conversation_id = versions, conversation_id

    @property
    def context_length(self) -> int:
        return self._versions.of(self._conversation_id).context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        said = await self._versions.of(self._conversation_id).generate(prompt_ids, sampling)
        self._versions.answers += 1
        return said
