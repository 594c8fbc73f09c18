"""A judge that scores a share of the exchanges that nobody rated."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, JudgeError
from astune.online.store import audit
from astune.online.store.feedback.figures import JUDGE_FAILED
from astune.online.store.feedback.judgements import UnratedExchange, failures, find_unrated, keep_unrated
from astune.online.store.feedback.rows import JUDGE
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, add
from astune.online.store.recorded import RecordedAnswer, load_recorded
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


@dataclass(frozen=True)
class JudgedExchanges:
    scored: int
    failed: int


class UnratedJudge:
    """Scores `judge_share` of the exchanges that nobody rated within `judge_after_seconds`, with `astune.task_judge`.

        judge = UnratedJudge(config.astune, database)
        await judge.judge_unrated()        # again and again, in the role `train`

    Which exchanges are of the share depends on their ids alone: after a restart it is the same. A judge that fails is
    counted, is asked again later, `MOST_ATTEMPTS` times in all, and never gives a reward. What it gives counts until a
    person says something. `clock` gives seconds since 1970.

    Raises:
        ConfigError: a share is set, and no judge.
    """

    def __init__(self, config: AstuneConfig, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._rules = config.online.feedback
        self._seconds = config.task_judge.seconds
        self._database, self._clock = database, clock
        self._judge: Judge | None = make_judge(config.task_judge) if self._rules.judge_share else None
        if self._rules.judge_share and self._judge is None:
            raise ConfigError("astune.online.feedback.judge_share needs a judge: set astune.task_judge.judge_protocol")
        specs = "+".join(one.judge for one in config.task_judge.judges)
        self._author = f"{JUDGE}{specs}"[:255]
        self._seen_until = clock() - config.online.commit.max_age_seconds
        self._again: dict[str, float] = {}
        """Exchanges that the judge failed on, and when it is asked again."""

    async def judge_unrated(self) -> JudgedExchanges:
        """Looks for exchanges that have come of age, and waits for the judge."""
        judge = self._judge
        if judge is None:
            return JudgedExchanges(0, 0)
        unrated, answers = self._due()
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(exchange: UnratedExchange) -> bool:
            async with gate:
                return await self._score(judge, exchange, [answers[msg_id] for msg_id in exchange.msg_ids])

        told = await asyncio.gather(*(one(exchange) for exchange in unrated))
        return JudgedExchanges(sum(told), len(told) - sum(told))

    def _due(self) -> tuple[list[UnratedExchange], dict[str, RecordedAnswer]]:
        now = self._clock()
        until = now - self._rules.judge_after_seconds
        again = [exchange for exchange, when in self._again.items() if when <= now]
        with self._database.reading() as connection:
            fresh = find_unrated(connection, self._seen_until - OVERLAP, until)
            chosen = [
                one
                for one in fresh
                if one.exchange not in self._again and share_of(one.exchange) < self._rules.judge_share
            ]
            found = [*chosen[:MOST_TOGETHER], *keep_unrated(connection, again)]
            found = [one for one in found if failures(connection, one.exchange) < MOST_ATTEMPTS]
            answers = load_recorded(connection, [msg_id for one in found for msg_id in one.msg_ids])
        self._seen_until = chosen[MOST_TOGETHER - 1].answered if len(chosen) > MOST_TOGETHER else until
        for exchange in again:
            del self._again[exchange]
        return found, answers

    async def _score(self, judge: Judge, exchange: UnratedExchange, answers: Sequence[RecordedAnswer]) -> bool:
        try:
            made = episode_of(exchange.exchange, answers, None, set(), answers[0].heading.task_id)
            said = str(answers[-1].turns[0][1].response.get("content") or "")
            episode = replace(made.episode, output=WorkflowOutput(answer=said))
            verdict = await ask_judge(judge, episode, self._seconds)
            if not self._rules.least <= verdict.reward <= self._rules.most:
                raise JudgeError(f"a reward of {verdict.reward:g} is out of bounds")
        except Exception as error:  # whatever a judge of one's own raises: it says nothing about the answer
            self._note_failure(exchange, error)
            return False
        new = NewFeedback(
            received=self._clock(),
            author=self._author,
            client=exchange.client,
            parts=(FeedbackPart("number", value=verdict.reward),),
            msg_ids=exchange.msg_ids,
            comment=visible(verdict.reason)[:MOST_COMMENT] or None,
        )
        self._database.write(lambda connection: add(connection, new, self._rules, role="train"))
        return True

    def _note_failure(self, exchange: UnratedExchange, error: Exception) -> None:
        now = self._clock()
        self._again[exchange.exchange] = now + self._rules.judge_after_seconds
        with self._database.writing() as connection:
            audit.say(connection, "train", JUDGE_FAILED, exchange.exchange, now=now, error=type(error).__name__)


def share_of(exchange: str) -> float:
    """A number in [0, 1) that depends on the id alone, spread evenly over ids.

    >>> share_of("chatcmpl-1") == share_of("chatcmpl-1"), 0 <= share_of("chatcmpl-2") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(exchange.encode()).digest()[:6], "big") / 2**48
