"""The plan of a commit: the judged answers that it learns from, those that wait, and those left out with the reason.

waits      for_siblings    repeats of its task may still be judged; not in a commit that somebody asked for
           not_asked_for   the commit is about something else
           for_a_later     the commit has as many as it may have
           for_a_signal    the commit has looked at it and found nothing to learn from, and looks at what came before
           for_other_authors   whoever said it has as many in the commit as one may have
           for_more        too few for a version
left out   too_old, too_far_behind, weighs_nothing
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from astune.config.online import CommitConfig
from astune.online.store.commits import Wanted
from astune.online.store.feedback.judgements import Judgement, Preference
from astune.online.store.recorded import Heading

Key: TypeAlias = tuple[str, ...]
"""Says which of all items one is."""


@dataclass(frozen=True)
class RatedAnswers:
    """Answers that were judged together, and by what they are learned from."""

    judgement: Judgement
    headings: tuple[Heading, ...]
    by_reward: bool = False
    by_thumb: bool = False
    by_correction: bool = False

    @property
    def received(self) -> float:
        return self.judgement.received

    @property
    def msg_ids(self) -> tuple[str, ...]:
        return self.judgement.msg_ids

    @property
    def key(self) -> Key:
        return ("rated", *self.msg_ids)

    @property
    def users(self) -> set[str]:
        """The people who were named, of whom it comes; else the one whom the answer was for."""
        said = (*self.judgement.raters, *self.judgement.correctors)
        return {name or self.headings[-1].user or "" for name in said} - {""}


@dataclass(frozen=True)
class ComparedPair:
    """An answer that people prefer to another."""

    preference: Preference
    headings: tuple[Heading, ...]

    @property
    def received(self) -> float:
        return self.preference.received

    @property
    def msg_ids(self) -> tuple[str, ...]:
        return (self.preference.better, self.preference.worse)

    @property
    def key(self) -> Key:
        return ("compared", *self.msg_ids)

    @property
    def users(self) -> set[str]:
        """The people who were named, of whom it comes; else those whom the answers were for."""
        return {name or self.headings[-1].user or "" for name in self.preference.raters} - {""}


Item: TypeAlias = RatedAnswers | ComparedPair


@dataclass(frozen=True)
class Learnable:
    """The items from which a commit may learn, now or later: all `keys`, those that are `telling` by themselves, and
    the `rewards` of the others, from which something is learned if they differ."""

    keys: frozenset[Key] = frozenset()
    telling: frozenset[Key] = frozenset()
    rewards: frozenset[float | None] = frozenset()

    def adds_nothing_to(self, other: Learnable) -> bool:
        """True if there is no more to learn than in `other`."""
        return self == other or (
            self.telling == other.telling and self.rewards == other.rewards and len(self.rewards) < 2
        )

    @classmethod
    def of(cls, groups: Sequence[tuple[RatedAnswers, ...]], pairs: Sequence[ComparedPair]) -> Learnable:
        telling: set[Key] = {pair.key for pair in pairs}
        rewards: set[float | None] = set()
        for group in groups:
            worth = {item.judgement.reward for item in group}
            telling |= {item.key for item in group if item.by_correction or item.by_thumb or len(worth) > 1}
            rewards |= {item.judgement.reward for item in group if item.by_reward}
        keys = {item.key for group in groups for item in group} | {pair.key for pair in pairs}
        return cls(frozenset(keys), frozenset(telling), frozenset(rewards))


@dataclass
class Plan:
    """`groups` are compared with each other: repeats of one task, or one alone. Everything stands in the order in which
    it was judged. `waiting` counts by reason, `incomplete` the groups that would wait if nobody had asked; `gist` is of
    what it may learn from now and of what waits for a later commit."""

    groups: list[tuple[RatedAnswers, ...]] = field(default_factory=list)
    pairs: list[ComparedPair] = field(default_factory=list)
    left_out: list[tuple[str, Item]] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    incomplete: int = 0
    siblings: int = 0
    """Answers at which a group is complete."""
    gist: Learnable = Learnable()

    @property
    def candidates(self) -> list[RatedAnswers]:
        return [candidate for group in self.groups for candidate in group]

    @property
    def items(self) -> list[Item]:
        return [*self.candidates, *self.pairs]

    @property
    def count(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Situation:
    """`behind` says of each version that answered how many steps it is from the one that is trained, in the tree of
    versions (None: nothing joins them); `now` is in seconds since 1970; no further attempts at a task are waited for
    once there are `siblings`, nor in an `explicit` commit, for which somebody asked. `passed` are items in which this
    commit has already found nothing to learn from."""

    rules: CommitConfig
    wanted: Wanted
    behind: Mapping[int, int | None]
    now: float
    siblings: int
    explicit: bool = False
    passed: frozenset[Key] = frozenset()


def plan_of(
    judged: Sequence[Judgement], compared: Sequence[Preference], headings: Mapping[str, Heading], situation: Situation
) -> Plan:
    """Deal all that was judged out. Invariant: each is in one place of the plan, and only there."""
    plan = Plan(siblings=situation.siblings)
    fresh: list[RatedAnswers] = []
    for judgement in judged:
        candidate = _candidate(judgement, headings, situation.rules)
        if _is_fresh(candidate, candidate.by_reward or candidate.by_thumb, plan, situation):
            if candidate.by_reward or candidate.by_thumb or candidate.by_correction:
                fresh.append(candidate)
            else:
                plan.left_out.append(("weighs_nothing", candidate))
    for preference in compared:
        pair = ComparedPair(preference, tuple(headings[msg_id] for msg_id in (preference.better, preference.worse)))
        if _is_fresh(pair, True, plan, situation):
            if situation.rules.weight_preferences:
                plan.pairs.append(pair)
            else:
                plan.left_out.append(("weighs_nothing", pair))
    plan.groups = _group(fresh, plan, situation)
    plan.gist = Learnable.of(plan.groups, plan.pairs)
    _limit(plan, situation)
    return plan


def _candidate(judgement: Judgement, headings: Mapping[str, Heading], rules: CommitConfig) -> RatedAnswers:
    thumbs_alone = judgement.thumb is not None and judgement.kinds <= {"thumb", "correction"}
    by_thumb = bool(rules.weight_thumbs) and thumbs_alone
    return RatedAnswers(
        judgement,
        tuple(headings[msg_id] for msg_id in judgement.msg_ids),
        by_reward=judgement.reward is not None and not by_thumb,
        by_thumb=by_thumb,
        by_correction=bool(judgement.corrections) and bool(rules.weight_corrections),
    )


def _is_fresh(item: Item, sampled: bool, plan: Plan, situation: Situation) -> bool:
    """True if the item may be trained now; if not, the plan notes why. The age of the version that answered counts only
    if its `sampled` tokens are learned from."""
    rules, wanted = situation.rules, situation.wanted
    answered = [heading.answered for heading in item.headings]
    late = wanted.time_threshold is not None and max(answered) >= wanted.time_threshold
    if late or not _is_wanted(item, wanted):
        plan.waiting["not_asked_for"] += 1
    elif situation.now - max(answered) > rules.max_age_seconds:
        plan.left_out.append(("too_old", item))
    elif sampled and any(_is_far(each.version, situation) for each in item.headings):
        plan.left_out.append(("too_far_behind", item))
    else:
        return True
    return False


def _is_far(version: int, situation: Situation) -> bool:
    """True of an answer of ours that is of a version too far from the one that is trained."""
    steps = situation.behind[version]
    return version >= 0 and (steps is None or steps > situation.rules.max_versions_behind)


def _is_wanted(item: Item, wanted: Wanted) -> bool:
    tasks, runs = {each.task_id for each in item.headings}, {each.run_id for each in item.headings}
    return wanted.task_id in {None, *tasks} and wanted.run_id in {None, *runs}


def _group(candidates: Sequence[RatedAnswers], plan: Plan, situation: Situation) -> list[tuple[RatedAnswers, ...]]:
    """Repeats of a task are a group, as soon as nobody waits for further ones. Within one run nothing is repeated:
    there the first judged is compared with the first of other runs, the second with the second."""
    repeats: dict[tuple[str, str], list[RatedAnswers]] = {}
    for candidate in candidates:
        if candidate.by_reward and candidate.judgement.task_id is not None:
            repeats.setdefault((candidate.headings[-1].client, candidate.judgement.task_id), []).append(candidate)
    place_of = {
        candidate.key: ("task", *names, str(place))
        for names, some in repeats.items()
        for candidate, place in zip(some, _find_places(some), strict=True)
    }
    groups: dict[tuple[str, ...], list[RatedAnswers]] = {}
    for candidate in candidates:
        groups.setdefault(place_of.get(candidate.key, ("alone", *candidate.msg_ids)), []).append(candidate)
    found = []
    for key, group in groups.items():
        newest = max(candidate.received for candidate in group)
        waits = key[0] == "task" and situation.now < newest + situation.rules.group_wait_seconds
        waits = waits and len(group) < situation.siblings
        if waits and not situation.explicit:
            plan.waiting["for_siblings"] += len(group)
        else:
            plan.incomplete += waits
            found.append(tuple(group))
    return found


def _find_places(repeats: Sequence[RatedAnswers]) -> list[int]:
    """Count the judged answers before each one in its run. An answer comes after those that it contains or follows, or
    else after the earlier ones of its conversation. Answers that follow the same answer belong to several runs."""
    ends = {each.msg_ids[-1]: number for number, each in enumerate(repeats)}
    begun: dict[str, dict[str, int]] = {}
    places: dict[int, int] = {}
    for number in range(len(repeats)):
        way = [number]
        while way[-1] not in places:
            first = repeats[way[-1]].headings[0]
            before = ends.get(first.follows or "")
            if before is not None and before not in way:
                way.append(before)
                continue
            mine = begun.setdefault(first.conversation_id, {})
            places[way[-1]] = mine.setdefault(first.follows or first.msg_id, len(mine)) + _count_inner(
                way[-1], repeats, ends
            )
        for before, after in zip(reversed(way), reversed(way[:-1]), strict=False):
            places[after] = places[before] + 1 + _count_inner(after, repeats, ends)
    return [places[number] for number in range(len(repeats))]


def _count_inner(number: int, repeats: Sequence[RatedAnswers], ends: Mapping[str, int]) -> int:
    """Count the others that end within this one."""
    return sum(ends.get(msg_id, number) != number for msg_id in repeats[number].msg_ids)


def _limit(plan: Plan, situation: Situation) -> None:
    """Keep the newest `max_episodes` of what was not passed, whole groups only, of each named user the newest
    `most_per_author` of them, and none if there are fewer than `min_episodes`."""
    units: list[tuple[Item, ...]] = [*plan.groups, *((pair,) for pair in plan.pairs)]
    left = [unit for unit in units if not situation.passed.issuperset(item.key for item in unit)]
    plan.waiting["for_a_signal"] += sum(map(len, units)) - sum(map(len, left))
    newest_first = deque(sorted(left, key=_newest, reverse=True))
    rules = situation.rules
    most_of_user = math.ceil(max(rules.most_per_author, 1.0 / rules.min_episodes) * rules.max_episodes)
    kept, of_user = list[tuple[Item, ...]](), Counter[tuple[str, str]]()
    while newest_first and (not kept or sum(map(len, kept)) + len(newest_first[0]) <= rules.max_episodes):
        unit = newest_first.popleft()
        users = Counter((item.headings[-1].client, user) for item in unit for user in item.users)
        if any(of_user[user] >= most_of_user for user in users):
            plan.waiting["for_other_authors"] += len(unit)
            continue
        of_user += users
        kept.append(unit)
    chosen = {id(unit[0]) for unit in kept}
    plan.waiting["for_a_later"] += sum(map(len, newest_first))
    if sum(map(len, kept)) < rules.min_episodes:
        plan.waiting["for_more"] += sum(map(len, kept))
        chosen = set()
    plan.groups = [group for group in plan.groups if id(group[0]) in chosen]
    plan.pairs = [pair for pair in plan.pairs if id(pair) in chosen]


def _newest(unit: Sequence[Item]) -> tuple[float, tuple[str, ...]]:
    return max((item.received, item.msg_ids) for item in unit)
