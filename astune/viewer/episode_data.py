"""One episode as data for the page of `astune view`: conversation, verdict, turns and timelines, each token id once."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from astune.context_tracker.prompt.messages import reasoning_of, show_content
from astune.monitor import EpisodeRecord
from astune.monitor.jsonl import plain
from astune.monitor.summary import show_causes
from astune.monitor.words import FORKS, LEFT_OUT, UNREAD
from astune.sampling import ContextCut
from astune.token_ids import WIDTH, TokenIds, count_shared_bytes
from astune.types import Episode, Timeline, ToolUse, Turn
from astune.viewer.run_config import LOGPROB_DIGITS, Pieces
from astune.viewer.step_credit import Credited

SHOWN_OF_DROPPED = 100
"""Characters that are shown of a message that was taken out."""


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
    summaries = {turn.cut.summary for turn in episode.turns if turn.cut is not None}
    seen: dict[str, list[Mapping[str, Any]]] = {}
    forks = _forks(episode)
    for number, turn in enumerate(episode.turns):
        before = seen.get(turn.agent, [])
        kept = _count_kept(before, turn.messages)
        if kept < len(before):
            why = FORKS.get(forks.get(number, ""), "The history was rewritten.")
            dropped = f"{why} {len(before) - kept} of {len(before)} earlier messages are not in it."
            if turn.cut is not None:
                dropped = f"{why} {_show_cut(turn, turn.cut, before)}"
            bubbles.append(Bubble(number, "note", dropped))
        bubbles += [_make_bubble(number, message) for message in turn.messages[kept:]]
        marks = _turn_marks(turn, forks.get(number), episode.turn_rewards.get(number))
        if number in summaries:
            marks.append(Mark("summary", "The run asked for it, to make room in the conversation.", "fork"))
        if number in episode.no_credit:
            marks.append(Mark("no credit", "No advantage above 0, for what its tool call was.", "warn"))
        bubbles.append(_make_bubble(number, {"role": "assistant", **turn.response}, marks))
        seen[turn.agent] = [*turn.messages, turn.response]
    return bubbles


def _show_cut(turn: Turn, cut: ContextCut, before: Sequence[Mapping[str, Any]]) -> str:
    """Tell how much the run took out for the turn, and how each message begins."""
    there = set(map(_comparable, turn.messages))
    gone = [message for message in before if _comparable(message) not in there]
    lines = [f"{message.get('role')}: {_one_line(message)}" for message in gone]
    size = f"{count_of(cut.messages, 'message')} out, {cut.prompt_tokens:,} tokens became {len(turn.prompt_ids):,}"
    return "\n".join([f"({cut.strategy}: {size})", *lines])


def _one_line(message: Mapping[str, Any]) -> str:
    text = " ".join([*_calls(message), *show_content(message).split()])
    return text if len(text) <= SHOWN_OF_DROPPED else f"{text[:SHOWN_OF_DROPPED]}..."


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


def episode_data(
    record: EpisodeRecord, credited: Credited, texts: Mapping[str, TokenTexts] | None
) -> tuple[dict[str, Any], dict[int, str]]:
    """The episode, and the texts of its token ids (none without a tokenizer). `texts` are those of models whose tokens
    are their own, by name, and of all others by ""."""
    episode = record.episode
    vocabulary: dict[int, str] = {}
    lanes = _lanes(episode, credited, texts, vocabulary)
    verdict, output = episode.verdict, episode.output
    tools, turns = _turns(episode)
    data = {
        "bubbles": [_drop_empty(asdict(bubble)) for bubble in conversation(episode)],
        "verdict": None if verdict is None else vars(verdict),
        "given": None if output is None else {"reward": output.reward, "metrics": output.metrics},
        "events": [] if output is None else output.events,
        "metrics": episode.metrics,
        "metadata": episode.task.metadata,
        "agent_rewards": episode.agent_rewards,
        "turn_rewards": {str(turn): reward for turn, reward in episode.turn_rewards.items()},
        "error": None if episode.error is None else vars(episode.error),
        "receipt": receipt_line(episode),
        "outcome": credited.outcome,
        "left_out": credited.left_out,
        "tools": tools,
        "tool_uses": {name: _show_use(use) for name, use in episode.tools.items()},
        "turns": turns,
    }
    return {**plain(data), "lanes": lanes}, vocabulary


def _show_use(use: ToolUse) -> str:
    """
    >>> _show_use(ToolUse(3, 2, "no", {"said_no": 1, "time_limit": 1}))
    '3 calls, 2 failed: 1 said no, 1 time limit'
    """
    failed = f", {use.errors} failed" if use.errors else ""
    return f"{count_of(use.calls, 'call')}{failed}{f': {show_causes(use.causes)}' if use.causes else ''}"


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
        **({"model": turn.model} if turn.model else {}),
    }


def _lanes(
    episode: Episode, credited: Credited, texts: Mapping[str, TokenTexts] | None, vocabulary: dict[int, str]
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
        odd: list[tuple[int, str]] = []
        if texts is not None:
            model = episode.turns[line.spans[0].turn].model
            known, odd = texts[model if model in texts else ""].of(ids)
            if model and model in texts:  # the vocabulary is the run's, so that all of its tokens are exceptions
                odd = [*({place: known[token] for place, token in enumerate(ids)} | dict(odd)).items()]
            else:
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
