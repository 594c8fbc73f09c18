"""Find the first point where two episodes part.

    difference = first_difference(recorded, replayed, chat_format.decode)
    difference.place     # "turn 2 of solver, prompt, message 3 (tool)"
    difference.first     # "...21 degrees..."
    difference.second    # "...12 degrees..."

They are compared in the order in which things happened: task; turn by turn the prompt, the answer and what became of
it; output, end, verdict; at last everything else that a recording holds. Seconds and tracebacks differ from run to run
and are not compared, nor are the names of the episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.monitor.jsonl import plain
from astune.ropes import common_start
from astune.types import Episode, Turn

Decode = Callable[[Sequence[int]], str]

AROUND = 12
"""Tokens that are shown before and after the first that differs."""
TEXT_AROUND = 60
"""Characters that are shown before and after the first that differs."""
NOTHING = "(nothing)"


@dataclass(frozen=True)
class Difference:
    """The point where two episodes part, and what stands there in each. `turn` is the number of the first turn that
    may differ, None past all turns."""

    place: str
    first: str
    second: str
    turn: int | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.first} / {self.second}"


def first_difference(first: Episode, second: Episode, decode: Decode | None = None) -> Difference | None:
    """None if their recordings are equal but for what differs from run to run. `decode` shows tokens as text."""
    return next(_differences(first, second, decode), None)


def without_timing(episode: Episode) -> Episode:
    """The episode less what differs from run to run: seconds, and the traceback of its error."""
    metrics = {name: value for name, value in episode.metrics.items() if name != "seconds"}
    error = None if episode.error is None else replace(episode.error, traceback="")
    return replace(episode, metrics=metrics, error=error)


def turns_differ(first: Episode, second: Episode, decode: Decode | None = None) -> Difference | None:
    """The same of the turns alone: of an episode that was cut short there is nothing else to compare."""
    return next(_turn_differences(first.turns, second.turns, decode), None)


def _differences(first: Episode, second: Episode, decode: Decode | None) -> Iterator[Difference]:
    one, two = (episode_to_row(EpisodeRecord(0, "", without_timing(episode))) for episode in (first, second))
    for found in values_differ("task", one["task"], two["task"]):
        yield replace(found, turn=0)
    yield from _turn_differences(first.turns, second.turns, decode)
    for name in ("answer", "output", "stop_reason", "error", "agent_rewards", "turn_rewards", "reward", "passed"):
        yield from values_differ(name.replace("_", " "), one[name], two[name])
    yield from values_differ("verdict", one["verdict"], two["verdict"])
    for name in ("timelines", "turns", "metrics", "unique_tokens"):
        yield from values_differ(name, one[name], two[name])


def _turn_differences(first: Sequence[Turn], second: Sequence[Turn], decode: Decode | None) -> Iterator[Difference]:
    for number, (one, two) in enumerate(zip(first, second, strict=False)):
        for found in _turn(one, two, decode):
            yield Difference(f"turn {number + 1} of {one.agent}, {found.place}", found.first, found.second, number)
    shorter = min(len(first), len(second))
    if len(first) != len(second):
        yield Difference(f"after {shorter} turns", _next_turn(first, shorter), _next_turn(second, shorter), shorter)


def _next_turn(turns: Sequence[Turn], number: int) -> str:
    return f"a call of {turns[number].agent}" if number < len(turns) else "no more model calls"


def _turn(one: Turn, two: Turn, decode: Decode | None) -> Iterator[Difference]:
    yield from values_differ("agent", one.agent, two.agent)
    yield from prompts_differ(one, two, decode)
    yield from _tokens("answer, ", one.output_ids, two.output_ids, decode)
    yield from values_differ("answer, finish reason", one.finish_reason, two.finish_reason)
    for place, (former, later) in enumerate(zip(plain_logprobs(one), plain_logprobs(two), strict=True)):
        if former != later:
            what = f" {decode([one.output_ids[place]])!r}" if decode else ""
            yield Difference(f"answer, logprob of token {place}{what}", str(former), str(later))
    yield from values_differ("answer", one.response, two.response)
    for name in ("temperature", "excluded", "exact", "fork", "follows"):
        yield from values_differ(name, getattr(one, name), getattr(two, name))


def plain_logprobs(turn: Turn) -> list[float]:
    """The turn's logprobs, rounded as a recording has them."""
    return [round(logprob, 5) for logprob in turn.logprobs]


def prompts_differ(one: Turn, two: Turn, decode: Decode | None = None) -> Iterator[Difference]:
    """The first message, tool or token of two prompts that differs."""
    former, later = plain(list(one.messages)), plain(list(two.messages))
    if former != later:
        place = common_start(former, later)
        message = (former[place:] or later[place:])[0]
        name = "tool result" if message.get("role") == "tool" else f"message {place} ({message.get('role')})"
        yield from values_differ(
            f"prompt, {name}", *(said[place] if place < len(said) else None for said in (former, later))
        )
    if plain(one.tools) != plain(two.tools):
        yield from values_differ("tools", plain(one.tools), plain(two.tools))
    yield from _tokens("prompt, ", one.prompt_ids, two.prompt_ids, decode)


def _tokens(where: str, one: Sequence[int], two: Sequence[int], decode: Decode | None) -> Iterator[Difference]:
    if one == two:
        return
    first, second = tuple(one), tuple(two)
    place = common_start(first, second)
    before = "" if decode is None else f" after {decode(first[max(0, place - AROUND) : place])!r}"
    yield Difference(f"{where}token {place}{before}", _show(first[place:], decode), _show(second[place:], decode))


def _show(ids: Sequence[int], decode: Decode | None) -> str:
    if not ids:
        return "(end)"
    return f"{ids[0]}" if decode is None else f"{ids[0]} {decode(ids[:AROUND])!r}"


def values_differ(name: str, one: Any, two: Any) -> Iterator[Difference]:
    """The first part of two JSON values that differs: `task.metadata.level: 1 / 2`."""
    if one == two:
        return
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in dict.fromkeys((*one, *two)):
            yield from values_differ(f"{name}.{key}", one.get(key), two.get(key))
    elif isinstance(one, list) and isinstance(two, list):
        place = common_start(one, two)
        yield from values_differ(
            f"{name}[{place}]", *(value[place] if place < len(value) else None for value in (one, two))
        )
    elif isinstance(one, str) and isinstance(two, str):
        yield Difference(name, *_texts(one, two))
    else:
        yield Difference(name, _value(one), _value(two))


def _value(value: Any) -> str:
    if value is None:
        return NOTHING
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 3 * TEXT_AROUND else text[: 3 * TEXT_AROUND] + "…"


def _texts(one: str, two: str) -> tuple[str, str]:
    """Both texts around the first character that differs."""
    place = common_start(one, two)
    start = max(0, place - TEXT_AROUND)

    def cut(text: str) -> str:
        shown = text[start : place + TEXT_AROUND]
        return repr("…" * bool(start) + shown + "…" * (place + TEXT_AROUND < len(text)))

    return cut(one), cut(two)
