"""One episode as data for the page of `astune view`: conversation, verdict, turns and timelines, each token id once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from astune.monitor import EpisodeRecord
from astune.monitor.jsonl import plain
from astune.token_ids import WIDTH, TokenIds, count_shared_bytes
from astune.types import Episode, Timeline, Turn
from astune.viewer.conversation import conversation, receipt_line
from astune.viewer.run_config import LOGPROB_DIGITS, Pieces
from astune.viewer.step_credit import Credited


def episode_data(
    record: EpisodeRecord, credited: Credited, texts: TokenTexts | None
) -> tuple[dict[str, Any], dict[int, str]]:
    """The episode, and the texts of its token ids (none without a tokenizer)."""
    episode = record.episode
    vocabulary: dict[int, str] = {}
    lanes = _lanes(episode, credited, texts, vocabulary)
    verdict, output = episode.verdict, episode.output
    tools, turns = _turns(episode)
    data = {
        "bubbles": [_drop_empty(asdict(bubble)) for bubble in conversation(episode)],
        "verdict": None if verdict is None else vars(verdict),
        "given": None if output is None else {"reward": output.reward, "metrics": output.metrics},
        "metrics": episode.metrics,
        "metadata": episode.task.metadata,
        "agent_rewards": episode.agent_rewards,
        "turn_rewards": {str(turn): reward for turn, reward in episode.turn_rewards.items()},
        "error": None if episode.error is None else vars(episode.error),
        "receipt": receipt_line(episode),
        "outcome": credited.outcome,
        "left_out": credited.left_out,
        "tools": tools,
        "turns": turns,
    }
    return {**plain(data), "lanes": lanes}, vocabulary


def _drop_empty(bubble: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in bubble.items() if value not in ("", (), None)}


def _turns(episode: Episode) -> tuple[list[Any], list[dict[str, Any]]]:
    """The distinct lists of tools that were offered, and the turns, which name theirs by number."""
    lists: dict[str, int] = {}
    turns = []
    for turn in episode.turns:
        text = json.dumps(plain(turn.tools), ensure_ascii=False)
        turns.append(_turn(turn, lists.setdefault(text, len(lists))))
    return [json.loads(text) for text in lists], turns


def _turn(turn: Turn, tools: int) -> dict[str, Any]:
    return {
        "agent": turn.agent,
        "prompt": len(turn.prompt_ids),
        "sampled": len(turn.output_ids),
        "finish": turn.finish_reason,
        "version": turn.policy_version,
        "temperature": turn.temperature,
        "excluded": turn.excluded,
        "exact": turn.exact,
        "tools": tools,
    }


def _lanes(
    episode: Episode, credited: Credited, texts: TokenTexts | None, vocabulary: dict[int, str]
) -> list[dict[str, Any]]:
    """The timelines. Of each only the ids after the start that it shares with an earlier one, `from`: [number, tokens];
    logprobs only where the turn was sampled, not where it is shared."""
    packed: list[bytes] = []
    lanes = []
    for number, line in enumerate(episode.timelines):
        data = TokenIds.of(line.token_ids).pack()
        own = min((span.start for span in line.spans if not span.shared), default=len(line.token_ids))
        parent, kept = _nearest(packed, data, own)
        packed.append(data)
        ids = list(line.token_ids)
        known, odd = ({}, []) if texts is None else texts.of(ids)
        vocabulary.update(known)
        lanes.append(
            {
                "agent": line.agent,
                "fork": line.fork,
                "length": len(ids),
                "from": None if parent is None else [parent, kept],
                "ids": ids[kept:],
                "odd": odd,
                "spans": _spans(line, number, credited),
            }
        )
    return lanes


def _nearest(earlier: Sequence[bytes], data: bytes, most: int) -> tuple[int | None, int]:
    """The first earlier row with the longest common start of at most `most` tokens, and how many these are; None if no
    token is shared. A row leaves another one before its own first answer, even if both were answered alike."""
    data = data[: most * WIDTH]
    best, parent = 0, None
    for number, other in enumerate(earlier):
        if other[: best + WIDTH] == data[: best + WIDTH]:  # or it cannot be longer than the best
            shared = count_shared_bytes(other, data)
            if shared > best:
                best, parent = shared, number
    return parent, best // WIDTH


def _spans(line: Timeline, number: int, credited: Credited) -> list[dict[str, Any]]:
    advantages = credited.advantages[number] if credited.advantages is not None else [None] * len(line.spans)
    weights = credited.weights[number] if credited.weights is not None else [0.0] * len(line.spans)
    return [
        {
            "turn": span.turn,
            "start": span.start,
            "stop": span.stop,
            "shared": span.shared,
            "advantage": advantage,
            "weight": weight,
            "logprobs": None if span.shared else list(map(_round_logprob, span.logprobs)),
        }
        for span, advantage, weight in zip(line.spans, advantages, weights, strict=True)
    ]


def _round_logprob(logprob: float) -> float | None:
    return round(logprob, LOGPROB_DIGITS) if math.isfinite(logprob) else None


BROKEN = "\ufffd"
"""What decoding gives for bytes that are no whole character."""


class TokenTexts:
    """`texts.of(ids)` gives one text per id, and the places where `pieces` says something else than that.

    >>> TokenTexts(lambda ids: [chr(64 + id) for id in ids]).of([2, 1, 2])
    ({2: 'B', 1: 'A'}, [])
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._known: dict[int, str] = {}
        self._anchor: int | None = None

    def of(self, ids: Sequence[int]) -> tuple[Mapping[int, str], list[tuple[int, str]]]:
        """Texts of distinct ids within a text, and exceptions as (place, text): the first token, before which some
        tokenizers write no space, and tokens that hold a part of a character, with the one after them."""
        texts = {token: self._inside(token) for token in dict.fromkeys(ids)}
        odd = dict(zip((0,), self._pieces(ids[:1]), strict=False))
        place = 0 if BROKEN in texts.values() else len(ids)
        while place < len(ids):
            start = place
            while place < len(ids) and texts[ids[place]] == BROKEN:
                place += 1
            if place > start:
                before, stop = max(0, start - 1), min(len(ids), place + 1)
                odd |= zip(range(start, stop), self._pieces(ids[before:stop])[start - before :], strict=True)
            place += 1
        return texts, [(place, text) for place, text in odd.items() if text != texts[ids[place]]]

    def _inside(self, token: int) -> str:
        """The text of the token where it is not the first; `BROKEN` for a part of a character."""
        if token not in self._known:
            if BROKEN in self._pieces([token])[0]:
                self._known[token] = BROKEN
            else:
                self._anchor = token if self._anchor is None else self._anchor
                self._known[token] = self._pieces([self._anchor, token])[1]
        return self._known[token]
