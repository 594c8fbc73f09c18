"""What a run learns from that plays no episodes: examples read, and when each is their turn."""

from __future__ import annotations

from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.examples.read import TrainingExample, read_examples
from astune.examples.samples import compared, imitated
from astune.training.schedule import Schedule
from astune.types import Sample


class ExampleSchedule(Schedule[TrainingExample]):
    """Which examples a step learns from."""

    def __init__(self, config: AstuneConfig) -> None:
        directory = resolve_base_dir(config.model.path, weights=False)
        chat_format = load_chat_format(config.model, directory)
        super().__init__(read_examples(config, chat_format), config.trainer, config.seed, noun="examples")
        self._config = config
        file = config.trainer.held_out_examples
        held_out = [] if file is None else read_examples(_of_file(config, file), chat_format)
        self.held_out = self._samples(held_out)

    def samples(self, step: int) -> list[Sample]:
        """The samples of step `step`, counted from 0."""
        return self._samples(self.at(step))

    def _samples(self, examples: list[TrainingExample]) -> list[Sample]:
        if self._config.algorithm.method != "sft":
            return compared(examples)
        return imitated(examples, self._config.algorithm.loss_aggregation, self._config.rollout.max_tokens)


def _of_file(config: AstuneConfig, file: str) -> AstuneConfig:
    trainer = config.trainer.model_copy(update={"examples": file, "examples_filter": None})
    return config.model_copy(update={"trainer": trainer})
