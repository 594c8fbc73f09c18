"""Samples against a slow reference: every loss term of a step, from the turns and the definitions alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import Weighting, check_episode, check_step, split_samples, to_samples
from astune.algorithm.advantage import dr_grpo, grpo
from astune.algorithm.aggregation import LossAggregation
from astune.algorithm.credit import Credit
from astune.context_tracker.merge import TurnForest
from astune.errors import InvariantError
from astune.types import Episode, Group, Sample, StopReason, Task, Turn, Verdict

CREDITS: tuple[Credit, ...] = get_args(Credit)
AGGREGATIONS: tuple[LossAggregation, ...] = get_args(LossAggregation)
MAX_TOKENS = 16
REWARDS = st.sampled_from([-1.0, 0.0, 0.5, 1.0])


def against_first(rewards: Sequence[float]) -> list[float]:
    """An estimator that computes exactly, so that advantages can be compared with `==`."""
    return [reward - rewards[0] for reward in rewards]


@st.composite
def histories(draw: st.DrawFn) -> list[Turn]:
    """Up to six turns of two agents. Each goes on from any earlier turn, or from a part of it, or begins anew."""
    turns: list[Turn] = []
    for _ in range(draw(st.integers(0, 6))):
        agent = draw(st.sampled_from("ab"))
        mine = [(*turn.prompt_ids, *turn.output_ids) for turn in turns if turn.agent == agent]
        base = draw(st.sampled_from([(), *mine]))
        kept = base if draw(st.integers(0, 3)) else base[: draw(st.integers(0, len(base)))]
        prompt = (*kept, *draw(st.lists(st.integers(0, 1), min_size=not kept, max_size=2)))
        output = draw(st.lists(st.integers(0, 1), max_size=3))
        excluded = draw(st.sampled_from([None, None, None, "frozen"]))
        turns.append(Turn(agent, prompt, output, [-1.0] * len(output), 0, "stop", excluded=excluded))
    return turns


@st.composite
def groups(draw: st.DrawFn) -> Group:
    task = Task(draw(st.uuids()).hex, "q")
    episodes = []
    for number in range(draw(st.integers(1, 3))):
        turns = draw(histories())
        verdict = draw(st.none() | st.builds(Verdict, REWARDS))
        agents = sorted({turn.agent for turn in turns})
        of_agent = draw(st.dictionaries(st.sampled_from(agents), REWARDS)) if agents else {}
        of_turn = draw(st.dictionaries(st.integers(0, len(turns) - 1), REWARDS, max_size=2)) if turns else {}
        episodes.append(episode(task, str(number), turns, verdict, of_agent, of_turn))
    return Group(task, tuple(episodes))


def episode(
    task: Task,
    name: str,
    turns: Sequence[Turn],
    verdict: Verdict | None,
    agent_rewards: dict[str, float] | None = None,
    turn_rewards: dict[int, float] | None = None,
) -> Episode:
    return Episode(
        f"{task.task_id}/{name}",
        task,
        tuple(turns),
        TurnForest(turns).timelines(),
        StopReason.COMPLETED,
        verdict=verdict,
        agent_rewards=agent_rewards or {},
        turn_rewards=turn_rewards or {},
    )


class Term(NamedTuple):
    """One token in the loss: what stands before it, what was sampled, and what that is credited."""

    context: tuple[int, ...]
    token: int
    advantage: float
    weight: float


def terms_of(samples: Sequence[Sample]) -> list[Term]:
    """The loss as a trainer of flattened rows computes it, one row at a time."""
    terms = []
    for sample in samples:
        ids = tuple(sample.timeline.token_ids)
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True):
            if weight:
                terms += [Term(ids[:i], ids[i], advantage, weight) for i in range(span.start, span.stop)]
    return sorted(terms)


class Part(NamedTuple):
    """A turn on one branch, as the reference counts it."""

    task: str
    episode: str
    turn: tuple[str, int]
    agent: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    advantage: float
    share: float


def reference(groups: Sequence[Group], credit: Credit, aggregation: LossAggregation) -> list[Term]:
    parts = []
    for group in groups:
        of_group = [part for found in advantages(group) for part in branch_parts(*found, credit)]
        if any(part.advantage for part in of_group):
            parts += [part for part in of_group if part.share and part.output]
    terms = []
    for part in parts:
        unit = {
            "episode_mean": lambda p: p.episode,
            "turn_mean": lambda p: p.turn,
            "agent_mean": lambda p: (p.episode, p.agent),
            "task_mean": lambda p: p.task,
            "token_mean": lambda p: None,
            "constant": lambda p: p.episode,
        }[aggregation]
        units = {unit(other) for other in parts}
        tokens = sum(len(other.output) * other.share for other in parts if unit(other) == unit(part))
        weight = part.share / len(units) / (MAX_TOKENS if aggregation == "constant" else tokens)
        for i, token in enumerate(part.output):
            terms.append(Term((*part.prompt, *part.output[:i]), token, part.advantage, weight))
    return sorted(terms)


def advantages(group: Group) -> list[tuple[Episode, dict[int, float], dict[int, float]]]:
    """Each judged episode with what its turns get for the outcome and what they get for themselves."""
    judged = [one for one in group.episodes if one.verdict is not None]
    outcome, process = {}, {}
    for agent in "ab":
        turns = [(e, n) for e, one in enumerate(judged) for n, turn in enumerate(one.turns) if turn.agent == agent]
        own = any(agent in one.agent_rewards for one in judged)
        compared = sorted({e for e, _ in turns}) if own else range(len(judged))
        rewards = [judged[e].agent_rewards.get(agent, judged[e].verdict.reward) for e in compared]
        values = dict(zip(compared, against_first(rewards) if rewards else [], strict=True))
        outcome |= {(e, n): values[e] for e, n in turns}
        if any(n in judged[e].turn_rewards for e, n in turns):
            process |= dict(
                zip(turns, against_first([judged[e].turn_rewards.get(n, 0.0) for e, n in turns]), strict=True)
            )
    return [
        (
            one,
            {n: outcome[e, n] for n in range(len(one.turns))},
            {n: process.get((e, n), 0.0) for n in range(len(one.turns))},
        )
        for e, one in enumerate(judged)
    ]


def branch_parts(one: Episode, outcome: dict[int, float], process: dict[int, float], credit: Credit) -> list[Part]:
    """Every trainable turn once per branch through it: from the turn to each turn below it that nothing continues."""
    children = continuations(one.turns)
    parts = []
    for number, turn in enumerate(one.turns):
        if turn.excluded is None:
            below = paths_from(number, children)
            for place, path in enumerate(below):
                share = {"once": float(place == 0), "mean_branch": 1 / len(below), "per_branch": 1.0}[credit]
                advantage = outcome[number] + sum(process[step] for step in path)
                where = one.task.task_id, one.episode_id, (one.episode_id, number), turn.agent
                parts.append(Part(*where, tuple(turn.prompt_ids), tuple(turn.output_ids), advantage, share))
    return parts


def continuations(turns: Sequence[Turn]) -> dict[int, list[int]]:
    """The turns that continue each turn: theirs is the longest whole of their agent that their prompt begins with; of
    equal ones the last that nothing continues yet, or the very last."""
    children: dict[int, list[int]] = {number: [] for number in range(len(turns))}
    for number, turn in enumerate(turns):
        found: dict[int, list[int]] = {}
        for earlier in range(number):
            whole = (*turns[earlier].prompt_ids, *turns[earlier].output_ids)
            if turns[earlier].agent == turn.agent and tuple(turn.prompt_ids)[: len(whole)] == whole:
                found.setdefault(len(whole), []).append(earlier)
        if found:
            candidates = found[max(found)]
            children[next((c for c in reversed(candidates) if not children[c]), candidates[-1])].append(number)
    return children


def paths_from(number: int, children: dict[int, list[int]]) -> list[list[int]]:
    if not children[number]:
        return [[number]]
    return [[number, *path] for child in children[number] for path in paths_from(child, children)]


@given(st.lists(groups(), max_size=3), st.sampled_from(CREDITS), st.sampled_from(AGGREGATIONS))
def test_the_loss_terms_are_those_of_the_definitions(
    step: list[Group], credit: Credit, aggregation: LossAggregation
) -> None:
    samples, receipt = to_samples(step, against_first, Weighting(aggregation, credit, MAX_TOKENS))
    check_step(step, samples, receipt)
    found, expected = terms_of(samples), reference(step, credit, aggregation)
    assert [term[:3] for term in found] == [term[:3] for term in expected]
    assert [term.weight for term in found] == pytest.approx([term.weight for term in expected])
    assert receipt.loss_terms == len(expected)
    total = math.fsum(term.weight for term in expected)
    assert receipt.weight_sum == pytest.approx(total)
    assert aggregation == "constant" or total == pytest.approx(1.0 if expected else 0.0)


@given(st.lists(groups(), max_size=3), st.sampled_from(AGGREGATIONS))
def test_without_rewards_of_turns_once_and_mean_branch_are_the_same_loss(
    step: list[Group], aggregation: LossAggregation
) -> None:
    plain = [
        Group(
            group.task,
            tuple(
                episode(group.task, one.episode_id, one.turns, one.verdict, dict(one.agent_rewards))
                for one in group.episodes
            ),
        )
        for group in step
    ]
    sums = []
    for credit in ("once", "mean_branch"):
        terms = terms_of(to_samples(plain, against_first, Weighting(aggregation, credit, MAX_TOKENS))[0])
        by_place: dict[tuple[object, ...], float] = {}
        for term in terms:
            by_place[term[:3]] = by_place.get(term[:3], 0.0) + term.weight
        sums.append(by_place)
    assert sums[0].keys() == sums[1].keys()
    assert list(sums[0].values()) == pytest.approx([sums[1][place] for place in sums[0]])


@given(st.lists(groups(), max_size=3), st.integers(1, 4), st.sampled_from(AGGREGATIONS), st.sampled_from(CREDITS))
def test_the_updates_of_a_step_are_whole_episodes_weighted_like_steps(
    step: list[Group], parts: int, aggregation: LossAggregation, credit: Credit
) -> None:
    samples, _ = to_samples(step, against_first, Weighting(aggregation, credit, MAX_TOKENS))
    dealt = split_samples(samples, parts, aggregation)
    assert sorted(t[:3] for part in dealt for t in terms_of(part)) == [t[:3] for t in terms_of(samples)]
    for part in dealt:
        names = {sample.episode_id for sample in part}
        assert not names & {sample.episode_id for other in dealt if other is not part for sample in other}
        total = math.fsum(sample.weight_sum for sample in part)
        if aggregation == "constant":
            whole = math.fsum(sample.weight_sum for sample in samples if sample.episode_id in names)
            everyone = {sample.episode_id for sample in samples}
            assert total * len(names) == pytest.approx(whole * len(everyone))
        else:
            assert total == pytest.approx(1.0)
        if aggregation == "episode_mean":
            for name in names:
                own = math.fsum(sample.weight_sum for sample in part if sample.episode_id == name)
                assert own == pytest.approx(1 / len(names))


BRANCHES = [
    Turn("a", (1,), (2, 3), (-1.0, -1.0), 0, "stop"),
    Turn("a", (1, 2, 3, 4), (5,), (-1.0,), 0, "stop"),
    Turn("a", (1, 2, 3, 6), (7,), (-1.0,), 0, "stop", fork="branch"),
]
"""A turn of two tokens that goes on in two ways."""


@pytest.mark.parametrize(
    ("credit", "expected"),
    [("once", [(1.0, 1.0)]), ("mean_branch", [(1.0, 0.5), (-1.0, 0.5)]), ("per_branch", [(1.0, 1.0), (-1.0, 1.0)])],
)
def test_a_shared_turn_gets_what_the_table_of_credit_says(credit: Credit, expected: list[tuple[float, float]]) -> None:
    task = Task("t", "q")
    group = Group(task, (episode(task, "0", BRANCHES, Verdict(0.0), turn_rewards={1: 1.0, 2: -1.0}),))
    samples, receipt = to_samples([group], dr_grpo, Weighting("token_mean", credit))
    shared = [(s.advantages[0], s.weights[0]) for s in samples if s.weights[0]]
    (alone,) = {weight for s in samples for span, weight in zip(s.timeline.spans, s.weights, strict=True) if span.turn}
    assert [(advantage, weight / alone) for advantage, weight in shared] == expected
    assert (receipt.trained, receipt.loss_terms) == (4, 4 if credit == "once" else 6)


def test_a_group_in_which_only_a_frozen_agent_does_better_is_left_out() -> None:
    task = Task("t", "q")
    turns = [Turn("user", (1,), (2,), (-1.0,), 0, "stop", excluded="frozen"), Turn("a", (3,), (4,), (-1.0,), 0, "stop")]
    episodes = tuple(episode(task, str(n), turns, Verdict(1.0), {"user": float(n)}) for n in range(2))
    samples, receipt = to_samples([Group(task, episodes)], grpo)
    assert samples == [] and receipt.dropped == {"frozen": 2, "no_signal": 2}


def test_the_invariants_catch_a_step_that_breaks_one() -> None:
    task = Task("t", "q")
    frozen = Turn("b", (8,), (9,), (-1.0,), 0, "stop", excluded="frozen")
    group = Group(task, tuple(episode(task, str(n), [*BRANCHES, frozen], Verdict(float(n))) for n in range(2)))
    samples, receipt = to_samples([group], grpo)
    check_step([group], samples, receipt)
    line = next(line for line in group.episodes[0].timelines if line.agent == "b")
    for broken, message in [
        (samples[1:], "does not match"),
        ([replace(samples[0], weights=(0.0, math.nan)), *samples[1:]], "has weight nan"),
        ([*samples, Sample(line, (1.0,), (0.1,), "t", "t/0")], "turn 3 is excluded from training and has weight"),
    ]:
        with pytest.raises(InvariantError, match=message):
            check_step([group], broken, receipt)
    with pytest.raises(InvariantError, match="does not account for every sampled token"):
        check_step([group], samples, replace(receipt, dropped={}))
    first = group.episodes[0]
    for timelines, message in [
        (first.timelines[1:], "turn 0 has 0 spans of its own"),
        ((*first.timelines, first.timelines[0]), "turn 0 has 2 spans of its own"),
        ((replace(first.timelines[0], token_ids=(9, 2, 3, 4, 5)), *first.timelines[1:]), "turn 0 is not in its timel"),
        ((replace(first.timelines[0], token_ids=(1, 2, 9, 4, 5)), *first.timelines[1:]), "turn 0 is not in its timel"),
    ]:
        with pytest.raises(InvariantError, match=message):
            check_episode(replace(first, timelines=timelines))


def conversation(rewritten: Sequence[bool]) -> list[Turn]:
    """Turns that follow each other; where `rewritten`, behind a history of other tokens."""
    turns: list[Turn] = []
    context: tuple[int, ...] = (9,)
    for number, anew in enumerate(rewritten):
        context = (100 + number,) if anew else context
        follows = number - 1 if number else None
        turns.append(Turn("a", context, (number,), (-1.0,), 0, "stop", follows=follows))
        context = (*context, number, 50 + number)
    return turns


def credited_turns(turns: Sequence[Turn], rewards: dict[int, float]) -> dict[int, float]:
    """The advantage of every turn, under `credit: once`, beside an attempt without rewards."""
    task = Task("t", "q")
    nothing = Turn("a", (1,), (2,), (-1.0,), 0, "stop")
    attempts = (
        episode(task, "0", [nothing], Verdict(0.0)),
        episode(task, "1", turns, Verdict(0.0), None, rewards),
    )
    samples, _ = to_samples([Group(task, attempts)], against_first)
    found = {}
    for sample in samples:
        if sample.episode_id == "t/1":
            rows = zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True)
            found |= {span.turn: advantage for span, advantage, weight in rows if weight}
    return found


@given(
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.dictionaries(st.integers(0, 5), REWARDS, min_size=1),
)
def test_a_turns_reward_reaches_the_turns_before_it_however_the_history_is_written(
    rewritten: list[bool], rewards: dict[int, float]
) -> None:
    """A template that drops reasoning must not decide who gets the credit."""
    rewards = {turn: reward for turn, reward in rewards.items() if turn < len(rewritten)} or {0: 1.0}
    appended = credited_turns(conversation([False] * len(rewritten)), rewards)
    assert credited_turns(conversation(rewritten), rewards) == appended


def test_of_several_rewritten_conversations_that_follow_a_turn_it_gets_the_mean() -> None:
    first = Turn("a", (1,), (2,), (-1.0,), 0, "stop")
    good = Turn("a", (3,), (4,), (-1.0,), 0, "stop", follows=0)
    bad = Turn("a", (3,), (5,), (-1.0,), 0, "stop", follows=0)
    assert credited_turns([first, good, bad], {1: 1.0, 2: -0.5}) == {0: 0.25, 1: 1.0, 2: -0.5}
