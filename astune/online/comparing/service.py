"""`/v1/astune/comparisons`: the next pair for a rater, and the vote on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Any, TypeVar

import sqlalchemy as sa

from astune.config.schema import AstuneConfig
from astune.errors import AstuneError, ConfigError
from astune.online.comparing.agreement import agreements
from astune.online.comparing.make import choose, make_pairs
from astune.online.comparing.sampling import VersionSampler, read_versions
from astune.online.redaction import Redactor
from astune.online.service.submissions import read_or_refuse, write_or_refuse
from astune.online.store import comparisons
from astune.online.store.comparisons import AnswerPair, Choice
from astune.online.store.feedback.rows import JUDGE, RATER
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, add, lock
from astune.online.store.recorded import RecordedAnswer, load_recorded
from astune.online.training.episodes import episode_of
from astune.online.wire import NextPair, PairVote, ShownChoice, read_wire
from astune.rollout.verdict import ask_group, verdict_or_error
from astune.store.database import Database
from astune.store.writer import Writer
from astune.support.http.service import HttpError
from astune.task_judge import Judge, make_judge
from astune.task_judge.judge_base import GroupJudge
from astune.types import Verdict, WorkflowOutput

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class PairJudge:
    """`astune.task_judge`, which says of two answers which is better. Raises ConfigError where there is no judge."""

    def __init__(self, config: AstuneConfig) -> None:
        judge = make_judge(config.task_judge)
        if judge is None:
            raise ConfigError(
                "astune.online.feedback.judge_comparisons needs a judge: set astune.task_judge.judge_protocol"
            )
        self._judge: Judge = judge
        self.name = f"{JUDGE}{'+'.join(one.judge for one in config.task_judge.judges)}"[:255]
        self._seconds = config.task_judge.seconds

    async def choose(self, first: RecordedAnswer, second: RecordedAnswer) -> Choice | None:
        """The judge's choice; None if it cannot tell."""
        episodes = []
        for answer in (first, second):
            made = episode_of(answer.heading.msg_id, [answer], None, set(), first.heading.task_id).episode
            said = str(answer.turns[0][1].response.get("content") or "")
            episodes.append(replace(made, output=WorkflowOutput(answer=said)))
        if isinstance(self._judge, GroupJudge):
            verdicts = await ask_group(self._judge, episodes, self._seconds)
        else:
            verdicts = [await verdict_or_error(self._judge, episode, self._seconds) for episode in episodes]
        for verdict in verdicts:
            if isinstance(verdict, Exception):
                logger.warning("a judge cannot tell which of two answers is better: %s", verdict)
        rewards = [verdict.reward for verdict in verdicts if isinstance(verdict, Verdict)]
        return choose(*rewards) if len(rewards) == 2 else None


class Comparisons:
    """Pairs are made when a rater has seen all. Which answer a rater sees first depends on pair and rater alone."""

    def __init__(
        self,
        writer: Writer,
        database: Database,
        config: AstuneConfig,
        redactor: Redactor,
        sampler: VersionSampler,
        clock: Callable[[], float],
    ) -> None:
        self._writer, self._database, self._clock = writer, database, clock
        self._rules, self._redactor, self._sampler = config.online.feedback, redactor, sampler
        self._judge = PairJudge(config) if self._rules.judge_comparisons else None
        self._making = asyncio.Lock()
        self._judging: set[asyncio.Task[None]] = set()

    async def next(self, query: Mapping[str, str], client: str) -> dict[str, Any]:
        """The next pair of the client's answers for the rater, None where there is none; the rater's progress, and how
        far raters agree. Raises HttpError."""
        asked = read_or_refuse(lambda: read_wire(NextPair, dict(query)))
        try:
            versions = await asyncio.to_thread(self._versions_of, asked)
            found = await asyncio.to_thread(self._look, asked, versions, client)
            if found["comparison"] is None and await self._make(asked, versions, client):
                found = await asyncio.to_thread(self._look, asked, versions, client)
        except AstuneError as error:
            raise HttpError(400, "cannot_compare", str(error)) from error
        return found

    async def vote(self, body: object, client: str) -> dict[str, Any]:
        """Take a vote; a preference becomes feedback. The judge's choice is told now. Raises HttpError."""
        said = read_or_refuse(lambda: read_wire(PairVote, body))
        comment = self._redactor.text(said.comment)

        def write(connection: sa.Connection) -> tuple[AnswerPair, str]:
            lock(connection)
            pair = comparisons.find(connection, said.id, client)
            if pair is None:
                raise HttpError(404, "not_found", f"there is no comparison {said.id}", "id")
            choice = _as_stored(said.choice, is_turned(said.id, said.rater))
            before = comparisons.write_vote(connection, said.id, said.rater, choice, comment, self._clock())
            if before == choice:  # sent again
                return pair, "kept"
            if before is not None:
                raise HttpError(409, "voted_already", f"{said.rater} has voted on comparison {said.id} already", "id")
            return pair, self._prefer(connection, pair, choice, said.rater, comment)

        pair, state = await self._write(write)
        return {"status": "success", "message": state, "judge": _as_shown(pair.judged, is_turned(said.id, said.rater))}

    def _prefer(
        self, connection: sa.Connection, pair: AnswerPair, choice: Choice, rater: str, comment: str | None
    ) -> str:
        if choice not in ("first", "second"):
            return "kept"
        ids = (pair.first, pair.second) if choice == "first" else (pair.second, pair.first)
        new = NewFeedback(
            received=self._clock(),
            author=f"{RATER}{rater}",
            client=pair.client,
            parts=(FeedbackPart("preference", "preference"),),
            better=ids[0],
            worse=ids[1],
            comment=comment,
        )
        outcome = add(connection, new, self._rules)
        return f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state

    def _versions_of(self, asked: NextPair) -> tuple[int, int] | None:
        if asked.versions is None:
            return None
        with self._database.reading() as connection:
            return read_versions(connection, asked.versions)

    def _look(self, asked: NextPair, versions: tuple[int, int] | None, client: str) -> dict[str, Any]:
        with self._database.reading() as connection:
            among = None if versions is None else comparisons.find_between(connection, client, *versions)
            if asked.task is not None:
                among = comparisons.find_of_task(connection, client, asked.task)
            waiting = comparisons.find_open(connection, client, asked.rater, among)
            votes, pairs = comparisons.every_vote(connection, client), comparisons.every_comparison(connection, client)
            shown = (_show(connection, number, client, asked.rater) for number in waiting)
            return {
                "comparison": next((each for each in shown if each is not None), None),
                "progress": {"done": sum(vote.rater == asked.rater for vote in votes), "open": len(waiting)},
                "agreement": [asdict(each) for each in agreements(votes, pairs)],
            }

    async def _make(self, asked: NextPair, versions: tuple[int, int] | None, client: str) -> bool:
        """Make pairs, for one rater at a time; true if there may be some now."""
        async with self._making:
            if versions is None:
                numbers = await self._write(lambda each: make_pairs(each, client, asked.task, self._clock()))
            else:
                numbers = await self._make_sampled(versions, client)
        if self._judge is not None:
            for number in numbers:
                task = asyncio.create_task(self._prejudge(self._judge, number, client))
                self._judging.add(task)
                task.add_done_callback(self._judging.discard)
        return bool(numbers)

    async def _make_sampled(self, versions: tuple[int, int], client: str) -> list[int]:
        pair = await self._sampler.sample(client, versions)
        if pair is None:
            return []

        def write(connection: sa.Connection) -> list[int]:
            lock(connection)
            if comparisons.find_compared(connection, pair):  # another process was quicker
                return []
            return [comparisons.add(connection, "versions", *pair, client, self._clock())]

        return await self._write(write)

    async def _prejudge(self, judge: PairJudge, number: int, client: str) -> None:
        def load() -> list[RecordedAnswer]:
            with self._database.reading() as connection:
                pair = comparisons.find(connection, number, client)
                found = {} if pair is None or pair.judged else load_recorded(connection, [pair.first, pair.second])
                return [found[msg_id] for msg_id in (pair.first, pair.second)] if pair and len(found) == 2 else []

        answers = await asyncio.to_thread(load)
        choice = await judge.choose(*answers) if answers else None
        if choice is not None:
            await self._write(lambda each: comparisons.write_judged(each, number, choice, judge.name))

    async def _write(self, work: Callable[[sa.Connection], Result]) -> Result:
        return await write_or_refuse(self._writer, work)


def is_turned(number: int, rater: str) -> bool:
    """True if the rater sees the second answer of a pair first."""
    return bool(blake2b(f"{number} {rater}".encode()).digest()[0] & 1)


def _show(connection: sa.Connection, number: int, client: str, rater: str) -> dict[str, Any] | None:
    """The pair as the rater sees it, with nothing that says who gave which answer; None where an answer is gone."""
    pair = comparisons.find(connection, number, client)
    found = {} if pair is None else load_recorded(connection, [pair.first, pair.second])
    if pair is None or len(found) < 2:
        return None
    first = found[pair.first]
    said = [dict(found[msg_id].turns[0][1].response) for msg_id in (pair.first, pair.second)]
    answers = said[::-1] if is_turned(number, rater) else said
    return {"id": number, "messages": list(first.messages), "tools": list(first.tools), "answers": answers}


def _as_stored(choice: ShownChoice, turned: bool) -> Choice:
    sides: tuple[Choice, Choice] = ("second", "first") if turned else ("first", "second")
    return sides[0] if choice == "1" else sides[1] if choice == "2" else choice


def _as_shown(choice: str | None, turned: bool) -> str | None:
    sides = {"first": "2", "second": "1"} if turned else {"first": "1", "second": "2"}
    return None if choice is None else sides.get(choice, choice)
