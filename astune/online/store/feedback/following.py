"""Exchanges that something followed, what judges said of that, and whether such a judge may be trusted.

The author of a judge of what followed begins with `FOLLOWING`. What it says hangs on what one user says next, so that
user counts as its source: for outliers, and for the comparison with people's scores.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.judging.agreement import cohen_kappa
from astune.online.store import audit
from astune.online.store.answers import chunks, find_of
from astune.online.store.feedback.judgements import UnratedExchange, load_exchanges
from astune.online.store.feedback.outliers import WINDOW, ScoreStats, deviations
from astune.online.store.feedback.rows import JUDGE, FeedbackRow, hold, load
from astune.store.tables import audit as audit_table
from astune.store.tables import feedback, feedback_messages, requests

FOLLOWING = f"{JUDGE}follow:"
DISTRUSTED, TRUSTED = "follow_judge_distrusted", "follow_judge_trusted"
"""The kinds of audit lines about a judge. The last of them says whether it is trusted."""
WHY_HELD = "its judge agrees too little with people (astune.online.feedback.follow.least_agreement)"
WHY_OUTLIER = "what this user says after answers is far off what everyone says"
MOST_OF_USER = 5
"""Most answers of one user in the comparison with people: nobody makes a judge trusted alone."""
MOST_COMPARED = 2000
"""The judge's newest answers among which people's are looked for."""
LEAST_OF_KIND = 5
"""Fewest answers that people liked, and that they did not, for kappa to tell."""
_OF_FOLLOWING = feedback.c.author.startswith(FOLLOWING, autoescape=True)
_ITS_ANSWER = feedback_messages.c.feedback_id == feedback.c.id
_ITS_REQUEST = requests.c.msg_id == feedback_messages.c.msg_id


def find_followed(connection: sa.Connection, after: float, until: float) -> list[UnratedExchange]:
    """Find the exchanges after which something came, after `after` and not after `until`, and of which no judge of what
    followed has spoken; those that people have rated too. `answered` is when the last of it came, the oldest first.

    A request may follow an exchange, stand in its place, or show by going on from another that that one followed it.
    """
    before, beside, two_before = (requests.alias(name) for name in ("before", "beside", "two_before"))
    new = (requests.c.exchange == requests.c.msg_id, requests.c.answered > after, requests.c.answered <= until)
    follows = sa.select(before.c.exchange, requests.c.answered).join(before, before.c.msg_id == requests.c.follows)
    first = before.alias("first")
    far = (
        sa.select(two_before.c.exchange, requests.c.answered)
        .join(before, before.c.msg_id == requests.c.follows)
        .join(first, first.c.msg_id == before.c.exchange)
        .join(two_before, two_before.c.msg_id == first.c.follows)
    )
    instead = sa.select(beside.c.exchange, requests.c.answered).join(
        beside,
        (beside.c.conversation_id == requests.c.conversation_id)
        & (beside.c.number < requests.c.number)
        & (beside.c.exchange == beside.c.msg_id)
        & ((beside.c.follows == requests.c.follows) | (beside.c.follows.is_(None) & requests.c.follows.is_(None))),
    )
    came: dict[str, float] = {}
    for chosen in (follows, far, instead):
        for exchange, when in connection.execute(chosen.where(*new)):
            came[exchange] = max(when, came.get(exchange, when))
    found = keep_followed(connection, sorted(came, key=lambda each: (came[each], each)))
    return [UnratedExchange(one.exchange, one.msg_ids, one.client, came[one.exchange]) for one in found]


def keep_followed(connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
    """Keep the exchanges of which no judge of what followed has spoken, in the same order. Redacted ones are left
    out."""
    spoken = sa.select(requests.c.exchange).join(feedback_messages, _ITS_REQUEST).join(feedback, _ITS_ANSWER)
    redacted = sa.select(requests.c.exchange).where(requests.c.redacted)
    done = find_of(connection, exchanges, lambda some: spoken.where(_OF_FOLLOWING, requests.c.exchange.in_(some)))
    done |= find_of(connection, exchanges, lambda some: redacted.where(requests.c.exchange.in_(some)))
    return load_exchanges(connection, [exchange for exchange in exchanges if exchange not in done])


@dataclass(frozen=True)
class FollowFigures:
    """What a judge of what followed has said: counts by vote, `held` of them, and its agreement with people, over
    `compared` answers that both have judged. `kappa` is None where one of both always says the same."""

    author: str
    votes: Mapping[str, int]
    held: int
    compared: int
    agreed: int
    kappa: float | None
    trusted: bool


def follow_figures(connection: sa.Connection, rules: FeedbackConfig) -> list[FollowFigures]:
    """The figures of all judges of what followed, by author."""
    middle = (rules.least + rules.most) / 2
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    held: Counter[str] = Counter()
    columns = (feedback.c.author, feedback.c.value, feedback.c.state)
    counted = sa.select(*columns, sa.func.count()).where(_OF_FOLLOWING).group_by(*columns)
    for author, value, state, count in connection.execute(counted):
        votes[author]["0" if value is None else "+1" if value > middle else "-1"] += count
        held[author] += count if state == "held" else 0
    found = []
    for author in sorted(votes):
        pairs = _pairs(connection, author, middle)
        said, given = [person for person, _ in pairs], [judge for _, judge in pairs]
        agreed = sum(person == judge for person, judge in pairs)
        trusted = is_trusted(connection, author)
        kappa = cohen_kappa(said, given)
        found.append(FollowFigures(author, dict(votes[author]), held[author], len(pairs), agreed, kappa, trusted))
    return found


def is_trusted(connection: sa.Connection, author: str) -> bool:
    """Tell whether what a judge says counts: it does until too little agreement is found."""
    last = (
        sa.select(audit_table.c.what)
        .where(audit_table.c.subject == author, audit_table.c.what.in_((DISTRUSTED, TRUSTED)))
        .order_by(audit_table.c.id.desc())
        .limit(1)
    )
    return connection.scalar(last) != DISTRUSTED


def check_following(connection: sa.Connection, rules: FeedbackConfig, now: float) -> list[FeedbackRow]:
    """Hold what judges of what followed say where one agrees too little with people, and of users who say something
    else than everyone. Return what was held for the former and counts again, which is to be decided on."""
    if rules.follow.judge is None:
        return []
    released: list[FeedbackRow] = []
    authors = sa.select(feedback.c.author).where(_OF_FOLLOWING, feedback.c.received > now - WINDOW).distinct()
    for author in list(connection.scalars(authors)):
        trusted = _decide_trust(connection, author, rules, now)
        its_own = feedback.c.author == author
        if not trusted:
            hold(connection, (its_own,), WHY_HELD, now, "train")
        else:
            released += load(connection, its_own, feedback.c.state == "held", feedback.c.reason == WHY_HELD)
    if rules.hold_outliers is not None:
        _hold_outliers(connection, rules, rules.hold_outliers, now)
    return released


def _decide_trust(connection: sa.Connection, author: str, rules: FeedbackConfig, now: float) -> bool:
    pairs = _pairs(connection, author, (rules.least + rules.most) / 2)
    before = is_trusted(connection, author)
    agrees = _agrees(pairs, rules)
    trusted = before if agrees is None else agrees
    if trusted != before:
        what = TRUSTED if trusted else DISTRUSTED
        agreed = sum(person == judge for person, judge in pairs)
        audit.say(connection, "train", what, author, now=now, agreed=agreed, compared=len(pairs))
    return trusted


def _agrees(pairs: Sequence[tuple[bool, bool]], rules: FeedbackConfig) -> bool | None:
    """Tell whether a judge agrees with people as much as it must. None where the pairs do not tell: there are too few,
    or people almost always say the same, so that kappa, which takes away what chance explains, is no figure."""
    if len(pairs) < rules.follow.least_compared:
        return None
    said, given = [person for person, _ in pairs], [judge for _, judge in pairs]
    if min(said.count(True), said.count(False)) < LEAST_OF_KIND:
        mostly = sum(person == judge for person, judge in pairs) > len(pairs) / 2
        return None if mostly or rules.follow.least_agreement < 0 else False
    kappa = cohen_kappa(said, given)
    return kappa is not None and kappa >= rules.follow.least_agreement


def _pairs(connection: sa.Connection, author: str, middle: float) -> list[tuple[bool, bool]]:
    """Tell of each answer that people and the judge have scored whether they liked it, and whether the judge did: of
    the newest `MOST_OF_USER` of a user. Of people the mean counts; a score in the middle says nothing."""
    spoken = (
        sa.select(requests.c.exchange, requests.c.user, requests.c.conversation_id, feedback.c.value)
        .join(feedback_messages, _ITS_REQUEST)
        .join(feedback, _ITS_ANSWER)
        .where(feedback.c.author == author, feedback.c.value.is_not(None))
        .order_by(feedback.c.id.desc())
        .limit(MOST_COMPARED)
    )
    judged = {row.exchange: row for row in connection.execute(spoken)}
    people = (
        sa.select(requests.c.exchange, sa.func.avg(feedback.c.value))
        .join(feedback_messages, _ITS_REQUEST)
        .join(feedback, _ITS_ANSWER)
        .where(
            ~feedback.c.author.startswith(JUDGE, autoescape=True),
            feedback.c.value.is_not(None),
            feedback.c.state.in_(("counts", "trained", "late")),
        )
        .group_by(requests.c.exchange)
    )
    means: dict[str, float] = {}
    for some in chunks(judged):
        for exchange, mean in connection.execute(people.where(requests.c.exchange.in_(some))):
            means[exchange] = float(mean)
    of_user: Counter[str] = Counter()
    found = []
    for exchange, row in judged.items():
        mean = means.get(exchange, middle)
        who = row.user or row.conversation_id
        if mean != middle and of_user[who] < MOST_OF_USER:
            of_user[who] += 1
            found.append((mean > middle, row.value > middle))
    return found


def _hold_outliers(connection: sa.Connection, rules: FeedbackConfig, most: float, now: float) -> None:
    """Each client has its own scale; the values of a user are what judges made of what that user said next."""
    value = feedback.c.value
    by_user = (
        sa.select(requests.c.client, requests.c.user, sa.func.count(), sa.func.avg(value), sa.func.avg(value * value))
        .join(feedback_messages, _ITS_REQUEST)
        .join(feedback, _ITS_ANSWER)
        .where(
            _OF_FOLLOWING,
            requests.c.user.is_not(None),
            requests.c.exchange == requests.c.msg_id,
            feedback.c.received > now - WINDOW,
        )
        .group_by(requests.c.client, requests.c.user)
    )
    of_client: dict[str, dict[str, ScoreStats]] = defaultdict(dict)
    for client, user, count, mean, square in connection.execute(by_user):
        of_client[client][user] = ScoreStats(int(count), float(mean), max(0.0, float(square) - float(mean) ** 2))
    for client, user in _far_off(of_client, rules.most - rules.least, most):
        its_rows = sa.select(feedback_messages.c.feedback_id).join(requests, _ITS_REQUEST)
        its_rows = its_rows.where(requests.c.client == client, requests.c.user == user)
        hold(connection, (_OF_FOLLOWING, feedback.c.id.in_(its_rows)), WHY_OUTLIER, now, "train")


def _far_off(
    of_client: Mapping[str, Mapping[str, ScoreStats]], value_range: float, most: float
) -> Iterator[tuple[str, str]]:
    for client, users in of_client.items():
        for user, off in deviations(users, value_range).items():
            if off > most:
                yield client, user
