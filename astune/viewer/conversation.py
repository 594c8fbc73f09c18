"""An episode for people: its conversation as bubbles, each message once, and its receipt in one line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.context_tracker.prompt.messages import reasoning_of, show_content
from astune.monitor.words import FORKS, LEFT_OUT, UNREAD
from astune.types import Episode, Turn


@dataclass(frozen=True)
class Mark:
    """A small label and the sentence that explains it. `kind` is its colour: "fork", "warn", "good" or "bad"."""

    text: str
    meaning: str
    kind: str


@dataclass(frozen=True)
class Bubble:
    """One message, under the `turn` that read or wrote it first. `role` is OpenAI's, or "note" for a remark of the
    viewer."""

    turn: int
    role: str
    text: str
    reasoning: str = ""
    calls: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()


def conversation(episode: Episode) -> list[Bubble]:
    """Every message once, in order: what is new in each turn's prompt, then the answer.

    A turn whose history is not the former one of its agent plus something says how many messages were dropped.
    """
    bubbles: list[Bubble] = []
    seen: dict[str, list[Mapping[str, Any]]] = {}
    forks = _forks(episode)
    for number, turn in enumerate(episode.turns):
        before = seen.get(turn.agent, [])
        kept = _count_kept(before, turn.messages)
        if kept < len(before):
            why = FORKS.get(forks.get(number, ""), "The history was rewritten.")
            dropped = f"{why} {len(before) - kept} of {len(before)} earlier messages are not in it."
            bubbles.append(Bubble(number, "note", dropped))
        bubbles += [_make_bubble(number, message) for message in turn.messages[kept:]]
        marks = _turn_marks(turn, forks.get(number), episode.turn_rewards.get(number))
        bubbles.append(_make_bubble(number, {"role": "assistant", **turn.response}, marks))
        seen[turn.agent] = [*turn.messages, turn.response]
    return bubbles


def _count_kept(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> int:
    """Count the messages of `before` that stand at the start of `now`. Reasoning may be dropped: it is the same
    message."""
    kept = 0
    for old, new in zip(before, now, strict=False):
        if _comparable(old) != _comparable(new):
            break
        kept += 1
    return kept


def _comparable(message: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    return message.get("role", "assistant"), message.get("tool_call_id") or "", show_content(message), _calls(message)


def _make_bubble(turn: int, message: Mapping[str, Any], marks: Sequence[Mark] = ()) -> Bubble:
    role = str(message.get("role", "assistant"))
    return Bubble(turn, role, show_content(message), reasoning_of(message) or "", _calls(message), tuple(marks))


def _calls(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Tool calls as people write calls: `add(a=1, b=2)`; arguments that are no JSON object stand as they are."""
    shown = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        text = function.get("arguments")
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError):
            arguments = None
        if isinstance(arguments, Mapping):
            text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        shown.append(f"{function.get('name')}({text})")
    return tuple(shown)


def _forks(episode: Episode) -> dict[int, str]:
    """By number of a turn the reason why a training row begins with it."""
    first = [(next(span.turn for span in line.spans if not span.shared), line.fork) for line in episode.timelines]
    return {turn: fork for turn, fork in first if fork is not None}


def _turn_marks(turn: Turn, fork: str | None, reward: float | None) -> list[Mark]:
    marks = []
    if fork is not None:
        marks.append(Mark(f"new row: {in_words(fork)}", FORKS.get(fork, ""), "fork"))
    if turn.unread:
        marks.append(Mark("call marks and no call", UNREAD, "warn"))
    if turn.excluded is not None:
        marks.append(Mark(f"not trained: {in_words(turn.excluded)}", LEFT_OUT.get(turn.excluded, ""), "warn"))
    if not turn.exact and turn.excluded not in ("frozen", "inexact"):  # the one cannot matter, the other says it
        marks.append(Mark("inexact", LEFT_OUT["inexact"], "warn"))
    if reward is not None:
        kind = "good" if reward > 0 else "bad"
        marks.append(Mark(f"turn reward {reward:+.3g}", "A reward of this turn, on top of the episode's.", kind))
    return marks


def in_words(label: str) -> str:
    return label.replace("_", " ")


def receipt_line(episode: Episode) -> str:
    """The episode's sampled tokens, and how many of them are trained, as far as the episode tells by itself."""
    left_out: Counter[str] = Counter()
    for turn in episode.turns:
        if turn.excluded is not None:
            left_out[turn.excluded] += len(turn.output_ids)
    sampled = sum(len(turn.output_ids) for turn in episode.turns)
    parts = [f"{sampled:,} tokens sampled", f"{sampled - left_out.total():,} trainable"]
    parts += [f"{count:,} {in_words(reason)}" for reason, count in left_out.most_common() if count]
    rows = count_of(len(episode.timelines), "training row")
    size = sum(len(line.token_ids) for line in episode.timelines)
    distinct = f" ({episode.unique_tokens:,} distinct)" if episode.unique_tokens < size else ""
    return " · ".join([*parts, f"{rows} of {size:,} tokens{distinct}"])


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
