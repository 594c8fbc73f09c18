"""Turns merged into timelines: as few training rows as exact prefixes allow, without changing a token.

turn 0: prompt abc, sampled DE
turn 1: prompt abcDEf, sampled G      extends turn 0
turn 2: prompt abX, sampled H         does not: a fork
-> timelines abcDEfG (loss on D, E, G) and abXH (loss on H)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from astune.types import Span, Timeline, Turn

BRANCH = "branch"
"""Cause of a fork that nothing was rewritten for: an earlier point of the conversation was continued once more
(a retry, best of n, calls side by side) or the agent began another conversation."""


@dataclass
class _Row:
    """A timeline under construction. `packed` is its token ids as bytes, so that a prefix test is one memcmp."""

    fork: str | None
    packed: bytes
    turns: list[int] = field(default_factory=list)


def merge_turns(turns: Sequence[Turn], forks: Sequence[str | None] = ()) -> tuple[Timeline, ...]:
    """Merge each turn into the longest timeline of its agent whose tokens are a prefix of the turn's prompt.

    A turn that extends none begins a timeline: its whole prompt is context, its sampled tokens carry loss.
    Every turn is in exactly one timeline, so every trainable sampled token carries loss exactly once, and the
    tokens before it are those the engine saw. Order of the result: by first turn. `turns` are in the order of
    their calls; `forks[i]` says why turn `i` could not extend an earlier one, used where it begins a timeline.

    Cost: linear in the tokens of all prompts, for each open timeline of the agent at most one comparison.
    """
    if forks and len(forks) != len(turns):
        raise ValueError(f"{len(turns)} turns but {len(forks)} fork causes")
    rows: list[_Row] = []
    open_rows: dict[str, list[_Row]] = {}
    for number, turn in enumerate(turns):
        prompt = array("i", turn.prompt_ids).tobytes()
        mine = open_rows.setdefault(turn.agent, [])
        row = max((row for row in mine if prompt.startswith(row.packed)), key=lambda row: len(row.packed), default=None)
        if row is None:
            cause = (forks[number] if forks else None) or BRANCH
            row = _Row(cause if mine else None, b"")
            mine.append(row)
            rows.append(row)
        row.packed = prompt + array("i", turn.output_ids).tobytes()
        row.turns.append(number)
    return tuple(_timeline(turns, row) for row in rows)


def _timeline(turns: Sequence[Turn], row: _Row) -> Timeline:
    last = turns[row.turns[-1]]
    token_ids = last.prompt_ids + last.output_ids
    loss_mask = [False] * len(token_ids)
    logprobs = [0.0] * len(token_ids)
    spans = []
    for number in row.turns:
        turn = turns[number]
        start, stop = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.output_ids)
        loss_mask[start:stop] = [turn.trainable] * (stop - start)
        logprobs[start:stop] = turn.logprobs
        spans.append(Span(number, start, stop, turn.policy_version, turn.temperature, turn.trainable))
    return Timeline(turns[row.turns[0]].agent, token_ids, tuple(loss_mask), tuple(logprobs), tuple(spans), row.fork)
