"""Random agents at the level of tokens, the definitions they are held against, and the checks.

The definitions know nothing of forests: plain tuples, every turn compared with every other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, get_args

from astune.algorithm import Weighting, check_step, to_samples
from astune.algorithm.aggregation import LossAggregation
from astune.algorithm.credit import Credit
from astune.context_tracker.forks import BRANCH, OTHER_AGENT
from astune.context_tracker.merge import TurnForest
from astune.token_ids import TokenIds
from astune.types import Episode, Group, StopReason, Task, Timeline, Turn, Verdict

CREDITS = get_args(Credit)
AGGREGATIONS = get_args(LossAggregation)
MAX_TOKENS = 16
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A model call. Its prompt begins with the prompt (or, if `whole`, with prompt and output) of call `base`."""

    agent: str
    prompt: Tokens
    output: Tokens
    base: int | None = None
    whole: bool = False
    excluded: str | None = None
    fork: str | None = None
    version: int = 0
    retry: bool = False
    exact: bool = True

    @property
    def tokens(self) -> Tokens:
        return self.prompt + self.output


# What agents do with their history: (history, number of the call to go on from) -> the prompt to send


def few(chance: Random, least: int = 0, most: int = 3) -> Tokens:
    """Tokens of so small a vocabulary that equal ones meet by chance."""
    return tuple(chance.randrange(3) for _ in range(chance.randint(least, most)))


def cut(chance: Random, tokens: Tokens) -> Tokens:
    return tokens[: chance.randint(0, len(tokens))]


def strip_reasoning(chance: Random, call: Call) -> Tokens:
    return call.prompt + call.output[chance.randint(0, len(call.output)) :] + few(chance)


def edit(chance: Random, call: Call) -> Tokens:
    place = chance.randint(0, len(call.tokens))
    return (*call.tokens[:place], chance.randrange(3), *call.tokens[place + 1 :], *few(chance))


def rephrase(chance: Random, call: Call) -> Tokens:
    return edit(chance, replace(call, output=()))[: len(call.prompt)]


def compact(chance: Random, call: Call) -> Tokens:
    return cut(chance, call.prompt) + few(chance) + call.tokens[chance.randint(0, len(call.tokens)) :]


def truncate(chance: Random, call: Call) -> Tokens:
    return call.tokens[:1] + call.tokens[chance.randint(1, max(1, len(call.tokens))) :] + few(chance)


def break_off(chance: Random, call: Call) -> Tokens:
    return cut(chance, call.tokens) + few(chance)


def begin_anew(chance: Random, call: Call) -> Tokens:
    return few(chance)


REWRITES: tuple[Callable[[Random, Call], Tokens], ...] = (
    strip_reasoning, edit, rephrase, compact, truncate, break_off, begin_anew,
)  # fmt: skip


def random_history(chance: Random, most: int = 8) -> list[Call]:
    """Calls of one to three agents in any order; some ask for several answers, some repeat themselves."""
    agents = "abc"[: chance.randint(1, 3)]
    history: list[Call] = []
    for _ in range(chance.randint(0, most)):
        call = next_call(chance, chance.choice(agents), history)
        answers = chance.choice([1, 1, 1, 1, 2, 3])
        history += [replace(call, output=output(chance, history)) for _ in range(answers)]
    return history


def next_call(chance: Random, agent: str, history: Sequence[Call]) -> Call:
    """Everything but the output."""
    mine = [number for number, call in enumerate(history) if call.agent == agent]
    base = chance.choice([mine[-1:], mine, range(len(history))]) or [None]
    number = chance.choice(base)  # mostly the agent's latest call, or an earlier one, or another agent's
    call = Call(
        agent,
        few(chance),
        (),
        excluded=chance.choice([None, None, None, "frozen", "greedy"]),
        fork=chance.choice([None, None, "history_edited"]),
        version=chance.randrange(3),
        exact=chance.randrange(8) > 0,
    )
    if number is None:
        return call
    act = chance.choice(["append", "append", "append", "again", "again", *REWRITES])
    if act == "append":
        return replace(call, prompt=history[number].tokens + few(chance), base=number, whole=True)
    if act == "again":
        return replace(call, prompt=history[number].prompt, base=number, retry=chance.choice([True, False]))
    return replace(call, prompt=act(chance, history[number]))


def output(chance: Random, history: Sequence[Call]) -> Tokens:
    """New tokens, or those of an earlier call."""
    return chance.choice(history).output if history and chance.randrange(4) == 0 else few(chance)


# From calls to an episode


def turn_of(call: Call, prompt_ids: Sequence[int]) -> Turn:
    return Turn(
        agent=call.agent,
        prompt_ids=prompt_ids,
        output_ids=call.output,
        logprobs=[-0.5 - index for index in range(len(call.output))],
        policy_version=call.version,
        finish_reason="stop",
        temperature=0.0 if call.excluded == "greedy" else 1.0,
        excluded=call.excluded,
        exact=call.exact,
        fork=call.fork,
    )


def grow(history: Sequence[Call], *, ropes: bool, forest: TurnForest | None = None) -> TurnForest:
    """The calls as turns of a forest. `ropes`: prompts extend the objects of earlier calls, as the tracker's do;
    otherwise each is a tuple of its own."""
    forest = TurnForest() if forest is None else forest
    sent: list[tuple[TokenIds, TokenIds]] = []  # prompt, and prompt with output
    for call in history:
        prompt = TokenIds(call.prompt)
        if ropes and call.base is not None:
            base = sent[call.base][call.whole]
            prompt = base + call.prompt[len(base) :]
        if call.retry:
            forest.exclude_repeated(call.agent, prompt, 1, "retried")
        turn = turn_of(call, prompt if ropes else call.prompt)
        forest.add(turn)
        sent.append((prompt, prompt + turn.output_ids))
    return forest


def episode_of(name: str, forest: TurnForest, reward: float) -> Episode:
    turns = tuple(forest.turns)
    unique = forest.unique_tokens
    verdict = Verdict(reward)
    return Episode(
        name, Task(f"task of {name[0]}", "q"), turns, forest.timelines(), StopReason.COMPLETED, None, verdict,
        unique_tokens=unique,
    )  # fmt: skip


# The definitions


def parents(history: Sequence[Call]) -> tuple[list[int | None], dict[int, int]]:
    """The call that each one continues, and for each call that is continued the first that does.

    That is the agent's earlier call with the most tokens that the prompt begins with, exact if this one is; of equal
    ones the latest that is not continued yet, or else the latest.
    """
    found: list[int | None] = []
    first: dict[int, int] = {}
    for number, call in enumerate(history):
        fits = [
            (len(other.tokens), earlier not in first, earlier)
            for earlier, other in enumerate(history[:number])
            if (other.agent, other.exact) == (call.agent, call.exact)
            and call.prompt[: len(other.tokens)] == other.tokens
        ]
        found.append(max(fits)[2] if fits else None)
        if fits:
            first.setdefault(max(fits)[2], number)
    return found, first


def branches(history: Sequence[Call]) -> list[list[int]]:
    """For each call that none continues, in order: the calls from the first one to it."""
    found, first = parents(history)
    rows = []
    for end in range(len(history)):
        if end not in first:
            row = [end]
            while (before := found[row[0]]) is not None:
                row.insert(0, before)
            rows.append(row)
    return rows


def excluded(history: Sequence[Call]) -> list[str | None]:
    """Why each call is not trained: its own reason, or that it was repeated before anything continued it."""
    reasons = [call.excluded for call in history]
    for number, call in enumerate(history):
        same = [
            earlier
            for earlier, other in enumerate(history[:number])
            if (other.agent, other.prompt) == (call.agent, call.prompt)
        ]
        if call.retry and same and same[-1] not in parents(history[:number])[1]:
            reasons[same[-1]] = reasons[same[-1]] or "retried"
    return reasons


def rows(history: Sequence[Call]) -> list[dict[str, Any]]:
    """The timelines. A call is a branch's own if the branch is the first that goes on from it, down to its end."""
    _, first = parents(history)
    lines = []
    for row in branches(history):
        own = [all(first[call] == after for call, after in zip(row[i:], row[i + 1 :])) for i in range(len(row))]  # noqa: B905
        begin = row[own.index(True)]
        line = {
            "agent": history[begin].agent,
            "tokens": history[row[-1]].tokens,
            "spans": [(call, len(history[call].prompt), not mine) for call, mine in zip(row, own, strict=True)],
            "fork": history[begin].fork or cause(history, begin),
        }
        lines.append((begin, line))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def cause(history: Sequence[Call], number: int) -> str | None:
    earlier = history[:number]
    if any(other.agent == history[number].agent for other in earlier):
        return BRANCH
    prompt = history[number].prompt
    return OTHER_AGENT if any(prompt[: len(other.tokens)] == other.tokens for other in earlier) else None


def loss_terms(histories: Sequence[Sequence[Call]], credit: str, aggregation: str) -> Counter[Any]:
    """(context, token, weight) of every term of the loss of a step whose episodes are of one task."""
    terms = []
    for episode, history in enumerate(histories):
        count = Counter(call for row in branches(history) for call in row)
        for number, reason in enumerate(excluded(history)):
            call = history[number]
            copies, share = {
                "once": (1, 1.0),
                "per_branch": (count[number], 1.0),
                "mean_branch": (count[number], 1.0 / count[number]),
            }[credit]
            if reason is None:
                for place, token in enumerate(call.output):
                    terms += [(episode, number, call.prompt + call.output[:place], token, share)] * copies
    unit = {
        "episode_mean": lambda term: term[0],
        "constant": lambda term: term[0],
        "token_mean": lambda term: None,
        "turn_mean": lambda term: term[:2],
        "agent_mean": lambda term: (term[0], histories[term[0]][term[1]].agent),
        "task_mean": lambda term: None,
    }[aggregation]
    sizes: dict[Any, float] = {}
    for term in terms:
        sizes[unit(term)] = sizes.get(unit(term), 0.0) + term[4]
    scale = {key: MAX_TOKENS if aggregation == "constant" else size for key, size in sizes.items()}
    return Counter((term[2], term[3], round(term[4] / len(sizes) / scale[unit(term)], 9)) for term in terms)


# The checks


def check_merge(history: Sequence[Call], *, ropes: bool) -> TurnForest:
    """The forest of the history says what the definitions say."""
    forest = grow(history, ropes=ropes)
    assert [tuple(turn.prompt_ids) for turn in forest.turns] == [call.prompt for call in history]
    assert [tuple(turn.output_ids) for turn in forest.turns] == [call.output for call in history]
    assert [turn.excluded for turn in forest.turns] == excluded(history)
    assert [facts(line) for line in forest.timelines()] == rows(history)
    assert len(forest.timelines()) == len(branches(history))
    prefixes = {call.tokens[: place + 1] for call in history for place in range(len(call.tokens))}
    assert forest.unique_tokens == len(prefixes)
    for line in forest.timelines():
        for span in line.spans:
            turn = forest.turns[span.turn]
            assert (span.stop - span.start, span.logprobs) == (len(turn.output_ids), turn.logprobs)
            assert (span.policy_version, span.temperature) == (turn.policy_version, turn.temperature)
            assert span.trainable == turn.trainable
    masked = Counter(
        (line.token_ids[:place], line.token_ids[place])
        for line in forest.timelines()
        for place, mask in enumerate(line.loss_mask)
        if mask
    )
    assert masked == Counter(
        (call.prompt + call.output[:place], token)
        for call, reason in zip(history, excluded(history), strict=True)
        if reason is None
        for place, token in enumerate(call.output)
    )
    return forest


def facts(line: Timeline) -> dict[str, Any]:
    spans = [(span.turn, span.start, span.shared) for span in line.spans]
    return {"agent": line.agent, "tokens": tuple(line.token_ids), "spans": spans, "fork": line.fork}


def check_credit(histories: Sequence[Sequence[Call]], aggregation: str, *, ropes: bool) -> None:
    """Samples of episodes with different rewards have the loss terms that the definitions say."""
    forests = [grow(history, ropes=ropes) for history in histories]
    episodes = [episode_of(f"e{number}", forest, float(number)) for number, forest in enumerate(forests)]
    check_samples(episodes, histories, aggregation)


def check_samples(episodes: Sequence[Episode], histories: Sequence[Sequence[Call]], aggregation: str) -> None:
    group = Group(episodes[0].task, tuple(episodes))
    for credit in CREDITS:
        samples, receipt = to_samples([group], rewards_themselves, Weighting(aggregation, credit, MAX_TOKENS))
        check_step([group], samples, receipt)
        terms = Counter(
            (sample.timeline.token_ids[:place], sample.timeline.token_ids[place], round(weight, 9))
            for sample in samples
            for span, weight in zip(sample.timeline.spans, sample.weights, strict=True)
            if weight
            for place in range(span.start, span.stop)
        )
        assert terms == loss_terms(histories, credit, aggregation)
        if aggregation != "constant" and terms:
            assert math.isclose(math.fsum(sample.weight_sum for sample in samples), 1.0)


def rewards_themselves(rewards: Sequence[float]) -> list[float]:
    """An estimator under which no episode is without signal."""
    return [reward + 1.0 for reward in rewards]


def check_all(chance: Random) -> None:
    """Everything above, of two random histories; objects that share tokens change nothing."""
    histories = [random_history(chance), random_history(chance, most=3)]
    linked, flat = (check_merge(histories[0], ropes=ropes) for ropes in (True, False))
    assert linked.timelines() == flat.timelines() == linked.timelines()
    check_credit(histories, chance.choice(AGGREGATIONS), ropes=chance.choice([True, False]))
