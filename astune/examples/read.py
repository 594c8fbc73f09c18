"""Read examples to learn from as rows of tokens: conversations, preferences, or episodes that a run recorded.

A line is an example in the form of the method (`astune/methods/`), or one of episodes/train.jsonl of a run, which every
method takes. A message of the assistant with `"weight": 0` carries no loss, as in OpenAI's files for fine-tuning.

A conversation becomes tokens as an episode does: each assistant message is an answer, in the tokens that a model
samples to say it, after the prompt that the context tracker builds for it. So the rows are those of an episode in which
the model said just that, tool calls and reasoning included, and only answers carry loss. Where the chat template writes
history differently from what was said (it drops reasoning), the conversation is several rows, each with what the model
would have seen; each is an example of its own. Recorded episodes keep the tokens that were sampled; answers of
a chat API, which gave text, those with which the model would say them.

A line that is none of these is an error, with every method. One of them that this model's template cannot write, or
that does not fit its context, is left out and counted, as is an episode that a method cannot learn from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import TaskError
from astune.examples.episodes import JudgedAttempts, read_recorded
from astune.examples.example import LeftOutExamples
from astune.examples.example import TrainingExample as TrainingExample
from astune.examples.method import ExampleLine, ExampleMethod, Seen, UnwritableExample, example_method_of
from astune.monitor.episode_filter import parse_filter
from astune.task_reader.jsonl import read_jsonl

KEY = "astune.trainer.examples"
FILTER = "astune.trainer.examples_filter"
logger = logging.getLogger(__name__)


def read_examples(config: AstuneConfig, chat_format: ChatFormat, key: str = KEY) -> list[TrainingExample]:
    """Read all examples of `astune.trainer.examples`, in the order of the file, and log what was left out, by cause.

    Raises `TaskError` that names file, line and field of what is wrong, and one that says why where there is no
    example.
    """
    found, left_out = examples_in(config, chat_format)
    path = config.trainer.examples
    if not found:
        raise TaskError(f"{key}: {path} has no examples{left_out.why_none()}")
    if said := left_out.list_causes(faults=False):
        logger.info("%s gives %s examples; left out are %s", path, f"{len(found):,}", "; ".join(said))
    if said := left_out.list_causes(faults=True):
        logger.warning("%s: %s examples are learned; left out are %s", path, f"{len(found):,}", "; ".join(said))
    return found


def examples_in(
    config: AstuneConfig, chat_format: ChatFormat, seen: Seen | None = None
) -> tuple[list[TrainingExample], LeftOutExamples]:
    """The examples, none where all were left out, and what was. Raises `TaskError` for a line that is wrong."""
    reading = _Reading(config, chat_format, example_method_of(config), seen)
    limit = config.model.max_model_len or chat_format.context_length
    found = []
    for example in reading.examples():
        longest = max(len(row.token_ids) for row in example.rows)
        if limit is not None and longest > limit:
            cause = f"that do not fit the model's context of {limit} tokens (astune.model.max_model_len)"
            reading.left_out.add(cause, example.place, f"{longest} tokens", is_fault=True)
        else:
            found.append(example)
    return found, reading.left_out


@dataclass
class _Reading:
    config: AstuneConfig
    chat_format: ChatFormat
    method: ExampleMethod
    seen: Seen | None
    left_out: LeftOutExamples = field(default_factory=LeftOutExamples)
    _follows_episode: bool = False

    def examples(self) -> Iterator[TrainingExample]:
        text, method = self.config.trainer.examples_filter, self.method
        keep = None if text is None else parse_filter(text)
        attempts = JudgedAttempts(self.left_out)
        for place, row in read_jsonl(Path(str(self.config.trainer.examples)), self._cut_off):
            self._follows_episode = "timelines" in row
            if not self._follows_episode:
                if keep is not None:
                    raise TaskError(f"{place}: not a recorded episode, which {FILTER} chooses among; take that key out")
                yield from self._read_line(place, row)
                continue
            if method.compares and self.config.backbone == "trinity":
                raise TaskError(f"{place}: a recorded episode, from which Trinity learns with method 'sft' alone")
            record = read_recorded(place, row)
            if keep is not None and not keep(record):
                self.left_out.add(f"that {FILTER} refuses", place)
                continue
            turns = record.episode.turns
            if self.seen is not None and turns:
                self.seen(place, turns[0].messages, turns[0].tools)
            yield from method.read_episode(record, place, attempts)
        yield from method.read_attempts(attempts)

    def _cut_off(self, error: TaskError) -> None:
        """Leaves out the last line of a run that was stopped while it wrote it."""
        if not self._follows_episode:
            raise error
        self.left_out.add("that were not written to their end", str(error).partition(": ")[0])

    def _read_line(self, place: str, row: Mapping[str, Any]) -> list[TrainingExample]:
        """The examples of a line that is no episode."""
        try:
            return self.method.read_line(ExampleLine(place, row, self.chat_format, self.seen))
        except UnwritableExample as why:
            self.left_out.add(why.cause, place, str(why), is_fault=True)
            return []
