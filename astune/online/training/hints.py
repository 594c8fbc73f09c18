"""Hints of what would have been better, as prompts of a teacher (`astune.methods.distill.learn_from_prompted`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.config.model import ModelConfig
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import WorkflowError
from astune.online.clock import format_at
from astune.online.training.episodes import OnlineEpisode
from astune.types import Sample, Span, Timeline, Turn

HINT = "hint"
"""`Sample.task_id` of what is learned from a hint."""


def pair_with_hint(
    made: OnlineEpisode, hint: str, chat_format: ChatFormat, model: ModelConfig, most_tokens: int | None
) -> Iterator[tuple[Sample, Sample, int]]:
    """The answers of an episode that may be trained, each as it was sampled and after the prompt with the hint, and the
    number of its turn in the store. Those that the chat template cannot write, or that are longer than `most_tokens`,
    are left out."""
    written = format_at(chat_format, model, made.answers[-1].began)
    for answer in made.answers:
        places = [place for place, number in enumerate(made.turn_ids) if number == answer.turns[0][0]]
        turn = made.episode.turns[places[0]]
        try:
            prompt = PromptBuilder(written).build(turn.agent, with_hint(answer.messages, hint), answer.tools).ids
        except WorkflowError:
            continue
        if turn.trainable and (most_tokens is None or len(prompt) + len(turn.output_ids) <= most_tokens):
            own = _sample(turn, turn.prompt_ids, made.episode.episode_id)
            yield own, _sample(turn, prompt, made.episode.episode_id), answer.turns[0][0]


def with_hint(messages: Sequence[Mapping[str, Any]], hint: str) -> list[Mapping[str, Any]]:
    """The messages, with the hint behind the text of the last one of a user.

    >>> with_hint([{"role": "user", "content": "2+2?"}], "Add.")
    [{'role': 'user', 'content': '2+2?\\n\\n(A hint: Add.)'}]
    """
    found = list(messages)
    last = max((place for place, message in enumerate(found) if message.get("role") == "user"), default=None)
    if last is not None:
        content, text = found[last].get("content"), f"\n\n(A hint: {hint})"
        more = [*content, {"type": "text", "text": text}] if isinstance(content, list) else f"{content or ''}{text}"
        found[last] = {**found[last], "content": more}
    return found


def _sample(turn: Turn, prompt: Sequence[int], episode_id: str) -> Sample:
    start, stop = len(prompt), len(prompt) + len(turn.output_ids)
    span = Span(0, start, stop, turn.policy_version, turn.temperature, True, turn.logprobs)
    line = Timeline(turn.agent, [*prompt, *turn.output_ids], (span,))
    return Sample(line, (1.0,), (1.0,), HINT, episode_id)
