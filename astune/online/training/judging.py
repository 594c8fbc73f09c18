"""Judges that score exchanges: a share of those that nobody rated."""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import sqlalchemy as sa

from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, JudgeError
from astune.online.store import audit
from astune.online.store.feedback.figures import JUDGE_FAILED
from astune.online.store.feedback.judgements import UnratedExchange, failures, find_unrated, keep_unrated
from astune.online.store.feedback.rows import JUDGE
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, add
from astune.online.store.recorded import RecordedAnswer, load_recorded
from astune.online.telemetry import Telemetry
from astune.online.training.episodes import episode_of
from astune.rollout.verdict import ask_judge
from astune.store.database import Database
from astune.support.visible import visible
from astune.task_judge import Judge, make_judge
from astune.task_judge.judge_base import AT_ONCE
from astune.types import WorkflowOutput

MOST_ATTEMPTS = 3
"""Most attempts of a judge at one exchange."""
MOST_TOGETHER = 256
"""Exchanges of one look; others are for the next."""
OVERLAP = 60.0
"""Seconds that are looked at twice: an answer may be written later than one that came after it."""
MOST_COMMENT = 10_000
"""Characters of a judge's reason."""
Material = TypeVar("Material")


@dataclass(frozen=True)
class JudgedExchanges:
    """`silent` are those of which the judge said that there is nothing to say."""

    scored: int
    failed: int
    silent: int = 0


@dataclass(frozen=True)
class JudgeScore:
    """A reward with its reason, and perhaps what would have been better. None says that nothing can be told."""

    reward: float | None
    reason: str
    hint: str | None = None


class ExchangeJudge(ABC, Generic[Material]):
    """Scores a share of the exchanges that it finds, as the author `author`.

        await judge.judge_due()            # again and again, in the role `train`

    Which exchanges are of the share depends on their ids alone: after a restart it is the same. A judge that fails is
    counted, is asked again `after_seconds` later, `MOST_ATTEMPTS` times in all, and never gives a reward. What it gives
    counts until a person says something. `clock` gives seconds since 1970.
    """

    def __init__(
        self,
        config: AstuneConfig,
        database: Database,
        *,
        author: str,
        share: float,
        after_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.rules, self.author = config.online.feedback, author[:255]
        self._telemetry = Telemetry(config.online.telemetry)
        self._share, self._after = share, after_seconds
        self._database, self._clock = database, clock
        self._seen_until = clock() - config.online.commit.max_age_seconds
        self._again: dict[str, float] = {}
        """Exchanges that the judge failed on, and when it is asked again."""

    @abstractmethod
    def find(self, connection: sa.Connection, after: float, until: float) -> list[UnratedExchange]:
        """Find the exchanges that came of age after `after` and not after `until`, the oldest first."""

    @abstractmethod
    def keep(self, connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
        """Keep the exchanges that are still to be judged."""

    @abstractmethod
    def read(self, connection: sa.Connection, found: Sequence[UnratedExchange]) -> Mapping[str, Material]:
        """Read what the judge is shown, by exchange. Those that it is not shown are left out."""

    @abstractmethod
    async def ask(self, exchange: UnratedExchange, material: Material) -> JudgeScore:
        """The judge's score. May raise anything where the judge fails."""

    async def judge_due(self) -> JudgedExchanges:
        """Looks for exchanges that have come of age, and waits for the judge."""
        due = self._due()
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(exchange: UnratedExchange, material: Material) -> bool | None:
            async with gate:
                return await self._score(exchange, material)

        told = await asyncio.gather(*(one(*each) for each in due))
        return JudgedExchanges(told.count(True), told.count(False), told.count(None))

    def _due(self) -> list[tuple[UnratedExchange, Material]]:
        now = self._clock()
        until = now - self._after
        again = [exchange for exchange, when in self._again.items() if when <= now]
        with self._database.reading() as connection:
            fresh = self.find(connection, self._seen_until - OVERLAP, until)
            chosen = [one for one in fresh if one.exchange not in self._again and share_of(one.exchange) < self._share]
            found = [*chosen[:MOST_TOGETHER], *self.keep(connection, again)]
            found = [one for one in found if failures(connection, one.exchange, self.author) < MOST_ATTEMPTS]
            material = self.read(connection, found)
        self._seen_until = chosen[MOST_TOGETHER - 1].answered if len(chosen) > MOST_TOGETHER else until
        for exchange in again:
            del self._again[exchange]
        return [(one, material[one.exchange]) for one in found if one.exchange in material]

    async def _score(self, exchange: UnratedExchange, material: Material) -> bool | None:
        try:
            score = await self.ask(exchange, material)
            if score.reward is not None and not self.rules.least <= score.reward <= self.rules.most:
                raise JudgeError(f"a reward of {score.reward:g} is out of bounds")
        except Exception as error:  # whatever a judge of one's own raises: it says nothing about the answer
            self._note_failure(exchange, error)
            return False
        new = NewFeedback(
            received=self._clock(),
            author=self.author,
            client=exchange.client,
            parts=(FeedbackPart("number", value=score.reward),),
            msg_ids=exchange.msg_ids,
            comment=visible(score.reason)[:MOST_COMMENT] or None,
            hint=score.hint,
        )
        self._database.write(lambda connection: add(connection, new, self.rules, role="train"))
        self._telemetry.evaluate(new)
        return None if score.reward is None else True

    def _note_failure(self, exchange: UnratedExchange, error: Exception) -> None:
        now = self._clock()
        self._again[exchange.exchange] = now + max(self._after, 1.0)
        with self._database.writing() as connection:
            said = {"judge": self.author, "error": type(error).__name__}
            audit.say(connection, "train", JUDGE_FAILED, exchange.exchange, now=now, **said)


class UnratedJudge(ExchangeJudge[Sequence[RecordedAnswer]]):
    """Scores `judge_share` of the exchanges that nobody rated within `judge_after_seconds`, with `astune.task_judge`.

    Raises:
        ConfigError: a share is set, and no judge.
    """

    def __init__(self, config: AstuneConfig, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        rules = config.online.feedback
        author = JUDGE + "+".join(one.judge for one in config.task_judge.judges)
        super().__init__(
            config,
            database,
            author=author,
            share=rules.judge_share,
            after_seconds=rules.judge_after_seconds,
            clock=clock,
        )
        self._seconds = config.task_judge.seconds
        self._judge: Judge | None = make_judge(config.task_judge) if rules.judge_share else None
        if rules.judge_share and self._judge is None:
            raise ConfigError("astune.online.feedback.judge_share needs a judge: set astune.task_judge.judge_protocol")

    def find(self, connection: sa.Connection, after: float, until: float) -> list[UnratedExchange]:
        return find_unrated(connection, after, until) if self._judge is not None else []

    def keep(self, connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
        return keep_unrated(connection, exchanges)

    def read(
        self, connection: sa.Connection, found: Sequence[UnratedExchange]
    ) -> Mapping[str, Sequence[RecordedAnswer]]:
        answers = load_recorded(connection, [msg_id for one in found for msg_id in one.msg_ids])
        return {one.exchange: [answers[msg_id] for msg_id in one.msg_ids] for one in found}

    async def ask(self, exchange: UnratedExchange, material: Sequence[RecordedAnswer]) -> JudgeScore:
        assert self._judge is not None, "without a judge nothing is found"
        made = episode_of(exchange.exchange, material, None, set(), material[0].heading.task_id)
        said = str(material[-1].turns[0][1].response.get("content") or "")
        episode = replace(made.episode, output=WorkflowOutput(answer=said))
        verdict = await ask_judge(self._judge, episode, self._seconds)
        return JudgeScore(verdict.reward, verdict.reason)


def share_of(exchange: str) -> float:
    """A number in [0, 1) that depends on the id alone, spread evenly over ids.

    >>> share_of("chatcmpl-1") == share_of("chatcmpl-1"), 0 <= share_of("chatcmpl-2") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(exchange.encode()).digest()[:6], "big") / 2**48
