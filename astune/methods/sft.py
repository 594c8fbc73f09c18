"""`sft`: example conversations, or episodes that a run recorded, imitated answer by answer.

{"messages": [{"role": "user", ...}, {"role": "assistant", ...}, ...], "tools": [...]}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astune.config.schema import AstuneConfig
from astune.examples.episodes import JudgedAttempts, rows_to_imitate
from astune.examples.example import TrainingExample
from astune.examples.method import ExampleLine, ExampleMethod
from astune.examples.samples import imitation_samples
from astune.monitor.episodes import EpisodeRecord
from astune.types import Sample


class Sft(ExampleMethod):
    """The loss is the negative log-likelihood of what answers say. Each row is an example of its own."""

    keys = frozenset({"loss_aggregation"})
    trained_by = ("local", "verl", "trinity")

    def read_line(self, line: ExampleLine) -> list[TrainingExample]:
        line.check_names("messages")
        return [TrainingExample((row,), line.place) for row in line.answers("messages")]

    def read_episode(self, record: EpisodeRecord, place: str, attempts: JudgedAttempts) -> Iterator[TrainingExample]:
        for row in rows_to_imitate(record.episode, place, attempts.left_out):
            yield TrainingExample((row,), place)

    def samples(self, examples: Sequence[TrainingExample], config: AstuneConfig) -> list[Sample]:
        return imitation_samples(examples, self.algorithm.loss_aggregation, config.rollout.max_tokens)
