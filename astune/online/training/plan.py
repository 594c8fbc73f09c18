"""Which judged answers a commit learns from, which wait, and which are left out and why: pure functions over rows.

waits      for_siblings    repeats of its task may still be judged; not in a commit that somebody asked for
           not_asked_for   the commit is about something else
           for_a_later     the commit has as many as it may have
           for_a_signal    the commit has looked at it and found nothing to learn from, and looks at what came before
           for_more        too few for a version
left out   too_old, too_far_behind, weighs_nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from astune.config.online import CommitConfig
from astune.store.commits import Wanted
from astune.store.feedback.judgements import Judgement, Preference
from astune.store.recorded import Heading

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


Item: TypeAlias = RatedAnswers | ComparedPair


@dataclass
class Plan:
    """`groups` are compared with each other: repeats of one task, or one alone. Everything stands in the order in which
    it was judged. `waiting` counts by reason, `incomplete` the groups that would wait if nobody had asked."""

    groups: list[tuple[RatedAnswers, ...]] = field(default_factory=list)
    pairs: list[ComparedPair] = field(default_factory=list)
    left_out: list[tuple[str, Item]] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    incomplete: int = 0

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
    """`base` is the version that is trained; `now` is in seconds since 1970; no further attempts at a task are waited
    for once there are `siblings`, nor in a commit that is `explicit`: asked for by somebody. In the items `passed` the
    commit has found nothing to learn from."""

    rules: CommitConfig
    wanted: Wanted
    base: int
    now: float
    siblings: int
    explicit: bool = False
    passed: frozenset[Key] = frozenset()


def plan_of(
    judged: Sequence[Judgement], compared: Sequence[Preference], headings: Mapping[str, Heading], situation: Situation
) -> Plan:
    """Deal all that was judged out. Invariant: each is in one place of the plan, and only there."""
    plan = Plan()
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
    plan.groups = _grouped(fresh, plan, situation)
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
    """Whether it may be trained now; if not, the plan says why. How old the version is that answered counts where what
    it `sampled` is learned from."""
    rules, wanted = situation.rules, situation.wanted
    answered = [heading.answered for heading in item.headings]
    late = wanted.time_threshold is not None and max(answered) >= wanted.time_threshold
    if late or not _is_wanted(item, wanted):
        plan.waiting["not_asked_for"] += 1
    elif situation.now - max(answered) > rules.max_age_seconds:
        plan.left_out.append(("too_old", item))
    elif sampled and any(0 <= each.version < situation.base - rules.max_versions_behind for each in item.headings):
        plan.left_out.append(("too_far_behind", item))
    else:
        return True
    return False


def _is_wanted(item: Item, wanted: Wanted) -> bool:
    tasks, runs = {each.task_id for each in item.headings}, {each.run_id for each in item.headings}
    return wanted.task_id in {None, *tasks} and wanted.run_id in {None, *runs}


def _grouped(candidates: Sequence[RatedAnswers], plan: Plan, situation: Situation) -> list[tuple[RatedAnswers, ...]]:
    """Repeats of a task are a group, as soon as nobody waits for further ones. Within one conversation nothing is
    repeated: there the first judged is compared with the first of other conversations, the second with the second."""
    groups: dict[tuple[str, ...], list[RatedAnswers]] = {}
    places: Counter[tuple[str, str, str]] = Counter()
    for candidate in candidates:
        last, task = candidate.headings[-1], candidate.judgement.task_id
        if not candidate.by_reward or task is None:
            groups[("alone", *candidate.msg_ids)] = [candidate]
            continue
        place = (last.client, task, last.conversation_id)
        groups.setdefault(("task", last.client, task, str(places[place])), []).append(candidate)
        places[place] += 1
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


def _limit(plan: Plan, situation: Situation) -> None:
    """Keep the newest `max_episodes` of what was not passed, whole groups only, and none if there are fewer than
    `min_episodes`."""
    units: list[tuple[Item, ...]] = [*plan.groups, *((pair,) for pair in plan.pairs)]
    left = [unit for unit in units if not situation.passed.issuperset(item.key for item in unit)]
    plan.waiting["for_a_signal"] += sum(map(len, units)) - sum(map(len, left))
    newest_first = sorted(left, key=_newest, reverse=True)
    rules = situation.rules
    kept, room = 0, rules.max_episodes
    for unit in newest_first:
        if kept and len(unit) > room:
            break
        kept, room = kept + 1, room - len(unit)
    chosen = {id(unit[0]) for unit in newest_first[:kept]}
    plan.waiting["for_a_later"] += sum(len(unit) for unit in newest_first[kept:])
    if sum(map(len, newest_first[:kept])) < rules.min_episodes:
        plan.waiting["for_more"] += sum(map(len, newest_first[:kept]))
        chosen = set()
    plan.groups = [group for group in plan.groups if id(group[0]) in chosen]
    plan.pairs = [pair for pair in plan.pairs if id(pair) in chosen]


def _newest(unit: Sequence[Item]) -> tuple[float, tuple[str, ...]]:
    return max((item.received, item.msg_ids) for item in unit)
