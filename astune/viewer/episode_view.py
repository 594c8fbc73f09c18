"""One episode as data for the page: its conversation as bubbles, its timelines as tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.context_tracker.messages import reasoning_of
from astune.types import Episode, Timeline, Turn

Pieces = Callable[[Sequence[int]], list[str]]
"""Token ids to one text each."""


@dataclass(frozen=True)
class Bubble:
    """One message. `role` is OpenAI's, or "note" for a remark of the viewer."""

    role: str
    text: str
    agent: str = ""
    reasoning: str = ""
    calls: tuple[str, ...] = ()
    facts: str = ""


def conversation(episode: Episode) -> list[Bubble]:
    """Every message once, in order: what is new in each turn's prompt, then the answer.

    A turn whose history is not the former one of its agent plus something says how many messages were dropped.
    """
    agents = {turn.agent for turn in episode.turns}
    bubbles: list[Bubble] = []
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for turn in episode.turns:
        agent = turn.agent if len(agents) > 1 else ""
        before = seen.get(turn.agent, [])
        kept = _kept(before, turn.messages)
        if kept < len(before):
            bubbles.append(Bubble("note", f"history rewritten: {len(before) - kept} of {len(before)} messages dropped"))
        bubbles += [bubble(message, agent) for message in turn.messages[kept:]]
        bubbles.append(bubble({"role": "assistant", **turn.response}, agent, _turn_facts(turn)))
        seen[turn.agent] = [*turn.messages, turn.response]
    return bubbles


def _kept(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> int:
    """How many messages of `before` stand at the start of `now`. Reasoning may be dropped: it is the same message."""
    kept = 0
    for old, new in zip(before, now, strict=False):
        if _spoken(old) != _spoken(new):
            break
        kept += 1
    return kept


def _spoken(message: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    return message.get("role", "assistant"), message.get("tool_call_id") or "", content(message), _calls(message)


def bubble(message: Mapping[str, Any], agent: str = "", facts: str = "") -> Bubble:
    role = str(message.get("role", "assistant"))
    speaker = agent if role == "assistant" else ""
    return Bubble(role, content(message), speaker, reasoning_of(message) or "", _calls(message), facts)


def content(message: Mapping[str, Any]) -> str:
    """The text of a message. A part that is not text is named in its place."""
    value = message.get("content")
    if isinstance(value, list):
        parts = [part if isinstance(part, Mapping) else {"text": part} for part in value]
        return "".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)
    return "" if value is None else str(value)


def _calls(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Tool calls as people write calls: `add(a=1, b=2)`; arguments that are no JSON object stand as they are."""
    shown = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        text = function.get("arguments")
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            arguments = None
        if isinstance(arguments, Mapping):
            text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        shown.append(f"{function.get('name')}({text})")
    return tuple(shown)


def _turn_facts(turn: Turn) -> str:
    facts = [f"{len(turn.prompt_ids):,} + {len(turn.output_ids):,} tokens"]
    if turn.finish_reason == "length":
        facts.append("cut off by the token limit")
    if not turn.trainable:
        facts.append("not trained")
    return ", ".join(facts)


def tokens(timeline: Timeline, pieces: Pieces | None) -> dict[str, Any]:
    """A timeline for the page's script. `texts` is None if the tokenizer is not at hand: ids are shown instead."""
    return {
        "ids": timeline.token_ids,
        "texts": None if pieces is None else pieces(timeline.token_ids),
        "spans": [
            {
                "turn": span.turn + 1,
                "start": span.start,
                "trained": span.trainable,
                "version": span.policy_version,
                "logprobs": [round(logprob, 4) for logprob in timeline.logprobs[span.start : span.stop]],
            }
            for span in timeline.spans
        ],
    }


@dataclass(frozen=True)
class Card:
    """One episode as the page shows it."""

    key: str
    heading: str
    reward: float | None
    passed: bool | None
    advantage: float | None
    facts: str
    answer: str
    reference: str
    reason: str
    error: str
    traceback: str
    bubbles: list[Bubble] = field(default_factory=list)
    timelines: list[dict[str, Any]] = field(default_factory=list)
    timeline_titles: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """ "good", "bad" or "none": the colour of the reward."""
        if self.reward is None:
            return "none"
        better = self.passed if self.passed is not None else self.reward > 0
        return "good" if better else "bad"


def card(key: str, heading: str, episode: Episode, pieces: Pieces | None, advantage: float | None = None) -> Card:
    verdict, error, output = episode.verdict, episode.error, episode.output
    return Card(
        key=key,
        heading=heading,
        reward=episode.reward,
        passed=None if verdict is None else verdict.passed,
        advantage=advantage,
        facts=_episode_facts(episode),
        answer="" if output is None or output.answer is None else str(output.answer),
        reference=episode.task.answer or "",
        reason="" if verdict is None else verdict.reason,
        error="" if error is None else f"{error.stage}: {error.kind}: {error.message}",
        traceback="" if error is None else error.traceback,
        bubbles=conversation(episode),
        timelines=[tokens(timeline, pieces) for timeline in episode.timelines],
        timeline_titles=[_timeline_title(timeline) for timeline in episode.timelines],
    )


def _episode_facts(episode: Episode) -> str:
    sampled = sum(len(turn.output_ids) for turn in episode.turns)
    turns = "1 turn" if len(episode.turns) == 1 else f"{len(episode.turns)} turns"
    facts = [turns, f"{sampled:,} tokens sampled", episode.stop_reason.value.replace("_", " ")]
    if "seconds" in episode.metrics:
        facts.append(f"{episode.metrics['seconds']:.1f} s")
    return " · ".join(facts)


def _timeline_title(timeline: Timeline) -> str:
    fork = f", a new row because: {timeline.fork}" if timeline.fork else ""
    return f"{timeline.agent}, {len(timeline.token_ids):,} tokens, {timeline.trained_tokens:,} trainable{fork}"
