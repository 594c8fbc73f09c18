"""Read examples to learn from as rows of tokens: conversations, preferences, or episodes that a run recorded.

    {"messages": [{"role": "user", ...}, {"role": "assistant", ...}, ...], "tools": [...]}                 sft
    {"messages": [{"role": "user", ...}], "chosen": {"role": "assistant", ...}, "rejected": {...}}         dpo
    {"messages": [{"role": "user", ...}], "answer": {"role": "assistant", ...}, "good": true}              kto
    a line of episodes/train.jsonl of a run                                                                all

A conversation becomes tokens as an episode does: each assistant message is an answer, in the tokens that a model
samples to say it, after the prompt that the context tracker builds for it. So the rows are those of an episode in which
the model said just that, tool calls and reasoning included, and only answers carry loss. Where the chat template writes
history differently from what was said (it drops reasoning), the conversation is several rows, each with what the model
would have seen; each is an example of its own. Recorded episodes keep the tokens that were sampled; answers of
a chat API, which gave text, those with which the model would say them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import TaskError, WorkflowError
from astune.examples.conversation import conversation_rows
from astune.examples.episodes import judged, recorded
from astune.examples.example import TrainingExample as TrainingExample
from astune.examples.fields import check_names, conversation, tools_of
from astune.monitor.episode_filter import parse_filter
from astune.task_reader.jsonl import read_jsonl
from astune.types import Episode, Timeline

KEY = "astune.trainer.examples"
FILTER = "astune.trainer.examples_filter"
TEXT_ALONE = ("inexact", "no_logprobs")
"""`Turn.excluded` of answers whose source gave no token ids, or no log-probabilities."""


def read_examples(config: AstuneConfig, chat_format: ChatFormat) -> list[TrainingExample]:
    """All examples of `astune.trainer.examples`, in the order of the file.

    Raises `TaskError` that names file, line and field of what is wrong, one that does not fit the model's context
    among it.
    """
    path = Path(str(config.trainer.examples))
    found = list(_read(path, config, chat_format))
    limit = config.model.max_model_len or chat_format.context_length
    for example in found:
        longest = max(len(row.token_ids) for row in example.rows)
        if limit is not None and longest > limit:
            raise TaskError(
                f"{example.place}: {longest} tokens do not fit the model's context of {limit} "
                "(astune.model.max_model_len)"
            )
    if not found:
        raise TaskError(f"{KEY}: {path} has no examples")
    return found


def _read(path: Path, config: AstuneConfig, chat_format: ChatFormat) -> Iterator[TrainingExample]:
    method = config.algorithm.method
    if method == "sft":
        return _imitated(path, config, chat_format)
    first = next(read_jsonl(path), None)
    if first is not None and "timelines" in first[1] and config.backbone != "trinity":
        return judged(path, config)
    return _preferences(path, chat_format) if method == "dpo" else _labelled(path, chat_format)


def _imitated(path: Path, config: AstuneConfig, chat_format: ChatFormat) -> Iterator[TrainingExample]:
    text = config.trainer.examples_filter
    keep = None if text is None else parse_filter(text)
    for place, row in read_jsonl(path):
        if "timelines" in row:
            record = recorded(place, row)
            timelines = _recorded(record.episode) if keep is None or keep(record) else ()
        elif keep is not None:
            raise TaskError(f"{place}: not a recorded episode, which {FILTER} chooses among; take that key out")
        else:
            timelines = _answers(row, place, chat_format)
        yield from (TrainingExample((timeline,), place) for timeline in timelines if timeline.trained_tokens)


def _recorded(episode: Episode) -> tuple[Timeline, ...]:
    """The rows of a recorded episode. Imitation needs no log-probabilities, and answers of a model that gave text alone
    stand in the tokens with which ours would say them: so those that RL leaves out for that carry loss here."""
    return tuple(
        replace(
            line,
            spans=tuple(
                replace(span, trainable=True) if episode.turns[span.turn].excluded in TEXT_ALONE else span
                for span in line.spans
            ),
        )
        for line in episode.timelines
    )


def _answers(row: Mapping[str, Any], place: str, chat_format: ChatFormat) -> tuple[Timeline, ...]:
    check_names(row, ("messages",), place)
    return _rows(place, "messages", chat_format, conversation(row, "messages", place), tools_of(row, place), 0)


def _preferences(path: Path, chat_format: ChatFormat) -> Iterator[TrainingExample]:
    for place, row in read_jsonl(path):
        check_names(row, ("messages", "chosen", "rejected"), place)
        context, tools = conversation(row, "messages", place), tools_of(row, place)
        pair = []
        for name in ("chosen", "rejected"):
            messages = [*context, *conversation(row, name, place)]
            timelines = _rows(place, name, chat_format, messages, tools, len(context))
            if len(timelines) != 1:
                raise TaskError(
                    f"{place}: {name}: the chat template writes its answers in {len(timelines)} different histories, "
                    "so that they cannot be weighed as one; expected a single assistant message"
                )
            pair.append(timelines[0])
        yield TrainingExample(tuple(pair), place, (True, False))


def _labelled(path: Path, chat_format: ChatFormat) -> Iterator[TrainingExample]:
    for place, row in read_jsonl(path):
        check_names(row, ("messages", "answer", "good"), place)
        context, tools = conversation(row, "messages", place), tools_of(row, place)
        if not isinstance(row["good"], bool):
            raise TaskError(f"{place}: good: expected true or false, got {row['good']!r}")
        messages = [*context, *conversation(row, "answer", place)]
        rows = _rows(place, "answer", chat_format, messages, tools, len(context))
        yield TrainingExample(rows, place, (row["good"],) * len(rows))


def _rows(
    place: str,
    name: str,
    chat_format: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    start: int,
) -> tuple[Timeline, ...]:
    try:
        rows = conversation_rows(chat_format, messages, tools, start)
    except WorkflowError as error:
        raise TaskError(f"{place}: {name}: {error}") from error
    if not rows:
        raise TaskError(f"{place}: {name}: no message of role 'assistant', so there is nothing to learn")
    return rows
