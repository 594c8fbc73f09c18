"""Where the tasks of a configuration come from, by its type of reader."""

from __future__ import annotations

from typing import NamedTuple

from astune.config.tasks import TaskReaderConfig


class TaskSources(NamedTuple):
    """The keys that say where training and held-out tasks come from, and whether they are set."""

    training: str
    has_training: bool
    held_out: str
    has_held_out: bool


def sources_of(reader: TaskReaderConfig) -> TaskSources | None:
    """None for a plug-in, whose keys are its own."""
    if reader.type == "jsonl":
        training, held_out = reader.jsonl.training.file_path, reader.jsonl.validation.file_path
        return TaskSources(
            "jsonl.training.file_path", training is not None, "jsonl.validation.file_path", held_out is not None
        )
    if reader.type == "huggingface":
        there = reader.huggingface.dataset_path is not None
        has_held_out = there and reader.huggingface.validation_split is not None
        return TaskSources("huggingface.dataset_path", there, "huggingface.validation_split", has_held_out)
    if reader.type == "reasoning_gym":
        gym = reader.reasoning_gym
        has_held_out = gym.validation_tasks > 0
        return TaskSources("reasoning_gym.datasets", bool(gym.datasets), "reasoning_gym.validation_tasks", has_held_out)
    if reader.type == "env_service":
        service = reader.env_service
        there = service.env_url is not None or service.serve is not None
        has_held_out = service.validation_split is not None
        return TaskSources("env_service.env_url", there, "env_service.validation_split", has_held_out)
    return None
