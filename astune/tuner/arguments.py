"""The arguments of AgentScope 1.0.21's `agentscope.tuner`: the same classes, fields and defaults.

>>> TunerModelConfig(model_path="tiny", max_model_len=2048).max_tokens
8192
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from astune.config.tasks import ROW_SUFFIXES, TaskReaderConfig
from astune.support.visible import tell
from astune.task_reader.huggingface import TaskReaderHuggingFace
from astune.task_reader.jsonl import TaskReaderJsonl
from astune.task_reader.task_reader_base import Rows


class WorkflowOutput(BaseModel):
    """The result of a workflow function."""

    reward: float | None = Field(None, description="the reward, where the workflow gives it itself")
    response: Any | None = Field(None, description="the answer, which the judge sees")
    metrics: dict[str, float] | None = Field(None, description="figures of the episode")


class JudgeOutput(BaseModel):
    """The result of a judge function."""

    reward: float = Field(description="the reward")
    metrics: dict[str, float] | None = Field(None, description="figures of the judgement")


WorkflowType: TypeAlias = Callable[..., Awaitable[WorkflowOutput]]
"""An async function of (task, model), and auxiliary_models and logger if it likes; to tune a prompt, of
(task, system_prompt)."""
JudgeType: TypeAlias = Callable[..., Awaitable[JudgeOutput]]
"""An async function of (task, response), and auxiliary_models and logger if it likes."""


class DatasetConfig(BaseModel):
    """A data set: a file, a folder or an id on the Hugging Face hub."""

    path: str = Field(description="the file, folder or id")
    name: str | None = Field(None, description="the subset")
    split: str | None = Field("train", description="the split; of a file there is one, whatever this says")
    total_epochs: int = Field(1, description="passes over it")
    total_steps: int | None = Field(None, description="steps, in the place of total_epochs; of a search: tasks")

    def preview(self, n: int = 5) -> list[Any]:
        """Print the first `n` rows, and return them. Raises TaskError, and MissingDependency without `datasets`."""
        rows = rows_of(self, limit=n)
        found = [dict(rows[index]) for index in range(min(n, len(rows)))]
        tell(json.dumps(found, indent=2, ensure_ascii=False, default=str))
        return found


def is_file(dataset: DatasetConfig) -> bool:
    """True of a file whose rows are taken as they are, without splits and subsets."""
    path = Path(dataset.path)
    return path.suffix in ROW_SUFFIXES and not path.is_dir() and dataset.split in ("train", "", None)


def rows_of(dataset: DatasetConfig, limit: int | None = None) -> Rows:
    """The rows, of which no more than `limit` are wanted."""
    if is_file(dataset):
        keys: dict[str, Any] = {"jsonl": {"training": {"file_path": dataset.path}}}
        found = TaskReaderJsonl(TaskReaderConfig.model_validate(keys)).rows("training")
    else:
        section = {"dataset_path": dataset.path, "dataset_name": dataset.name or None, "streaming": limit is not None}
        section["training_split"] = dataset.split or "train"
        keys = {"type": "huggingface", "huggingface": section, "max_training_tasks": limit}
        found = TaskReaderHuggingFace(TaskReaderConfig.model_validate(keys)).rows("training")
    assert found is not None
    return found


class AlgorithmConfig(BaseModel):
    """The algorithm that weights are tuned by."""

    algorithm_type: str = Field("multi_step_grpo", description="a name of Trinity's")
    learning_rate: float = Field(1e-6, description="the learning rate")
    group_size: int = Field(8, description="attempts at each task")
    batch_size: int = Field(32, description="tasks in a step")
    save_interval_steps: int = Field(100, description="steps between checkpoints")
    eval_interval_steps: int = Field(100, description="steps between evaluations")


class TinkerConfig(BaseModel):
    """An adapter that is trained by a tinker server."""

    rank: int = Field(16, description="rank of the adapter")
    seed: int | None = Field(None, description="seed of its first weights")
    train_mlp: bool = Field(True, description="adapt the MLP layers")
    train_attn: bool = Field(True, description="adapt the attention layers")
    train_unembed: bool = Field(True, description="adapt the head")
    base_url: str | None = Field(None, description="the server's address; None: the service's own")

    def get_config(self) -> dict[str, Any]:
        return self.model_dump()


class TunerModelConfig(BaseModel):
    """A model that is tuned, or that other agents run on."""

    model_path: str = Field(description="a folder or an id on the hub")
    max_model_len: int = Field(description="most tokens of prompt and answer together")
    temperature: float = Field(1.0, description="temperature of sampling")
    top_p: float = Field(1.0, description="top-p of sampling")
    max_tokens: int = Field(8192, description="most tokens of an answer")
    enable_thinking: bool | None = Field(None, description="passed to the chat template, if it is set")
    tensor_parallel_size: int = Field(1, description="GPUs of an engine")
    inference_engine_num: int = Field(1, description="engines")
    tool_call_parser: str = Field("hermes", description="vLLM's name of how the model writes tool calls")
    reasoning_parser: str = Field("deepseek_r1", description="vLLM's name of how the model writes thoughts")
    tinker_config: TinkerConfig | None = Field(None, description="a tinker server that trains; None: none")

    def get_config(self) -> dict[str, Any]:
        names = ("model_path", "max_model_len", "tensor_parallel_size", "tool_call_parser", "reasoning_parser")
        found = {name: getattr(self, name) for name in names}
        return found | {
            "engine_num": self.inference_engine_num,
            "enable_openai_api": True,
            "enable_auto_tool_choice": True,
        }


class PromptTuneConfig(BaseModel):
    """A search for a better prompt."""

    lm_model_name: str = Field("dashscope/qwen-plus", description="who proposes prompts: PROVIDER/MODEL")
    optimization_level: Literal["light", "medium", "heavy"] | None = Field("light", description="how long is searched")
    eval_display_progress: bool = Field(True, description="show progress")
    eval_display_table: int = Field(5, description="rows of the table of episodes that is shown at the end")
    eval_num_threads: int = Field(16, description="episodes under way at the same time")
    compare_performance: bool = Field(True, description="compare with the first prompt on the evaluation tasks")
