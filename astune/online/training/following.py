"""The judge of what users did after an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import sqlalchemy as sa

from astune.config.schema import AstuneConfig
from astune.errors import JudgeError
from astune.online.follow.followed import Followed, find_followed
from astune.online.follow.verdict import check_follow_verdict, make_follow_judge
from astune.online.store.feedback import following
from astune.online.store.feedback.judgements import UnratedExchange, find_unrated
from astune.online.store.requests import find_request, load_conversation
from astune.online.training.judging import ExchangeJudge, JudgeScore
from astune.rollout.time_limit import within
from astune.store.database import Database

MOST_SECONDS = 600.0
"""Most seconds of a judge for one exchange."""


class FollowingJudge(ExchangeJudge[Followed]):
    """Scores exchanges by what followed them, with `astune.online.feedback.follow`, as soon as something does. A vote
    of 1 is the reward `astune.online.feedback.most`, -1 is `least`; 0 is none: that is feedback which is left out.

    Exchanges that people have rated are judged too: their word counts, and the judge's is compared with it.
    """

    def __init__(self, config: AstuneConfig, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        follow = config.online.feedback.follow
        asked = "+".join(model.model for model in follow.llm.models)
        name = asked if follow.judge == "model" else follow.judge
        author = f"{following.FOLLOWING}{name}"
        super().__init__(config, database, author=author, share=follow.share, after_seconds=0.0, clock=clock)
        self._judge = make_follow_judge(follow)
        self._silence = follow.silence_seconds
        self._told_nothing: dict[str, float] = {}
        """Exchanges that nothing on the main line has followed yet, and when they were last gone on from."""

    def find(self, connection: sa.Connection, after: float, until: float) -> list[UnratedExchange]:
        if self._judge is None:
            return []
        self._told_nothing = {exchange: when for exchange, when in self._told_nothing.items() if when > after}
        found = following.find_followed(connection, after, until)
        found = [one for one in found if self._told_nothing.get(one.exchange) != one.answered]
        if self._silence is not None:
            silent = find_unrated(connection, after - self._silence, until - self._silence)
            known = {one.exchange for one in found}
            found += [
                one for one in self.keep(connection, [each.exchange for each in silent]) if one.exchange not in known
            ]
        return found

    def keep(self, connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
        return following.keep_followed(connection, exchanges)

    def read(self, connection: sa.Connection, found: Sequence[UnratedExchange]) -> Mapping[str, Followed]:
        seen: dict[str, Followed] = {}
        for one in found:
            conversation = load_conversation(connection, find_request(connection, one.exchange) or "")
            rests = self._silence is not None and one.answered <= self._clock() - self._silence
            followed = find_followed(conversation, one.exchange, rests=rests)
            if followed is None:
                self._told_nothing[one.exchange] = one.answered
            else:
                seen[one.exchange] = followed
        return seen

    async def ask(self, exchange: UnratedExchange, material: Followed) -> JudgeScore:
        assert self._judge is not None, "without a judge nothing is found"
        finished, found = await within(self._judge.judge(material), MOST_SECONDS, "the judge of what followed")
        if not finished:
            raise JudgeError(f"the judge of what followed took longer than {MOST_SECONDS:g} s")
        found = check_follow_verdict(found)
        reward = {1: self.rules.most, 0: None, -1: self.rules.least}[found.vote]
        return JudgeScore(reward, found.reason, found.hint)
