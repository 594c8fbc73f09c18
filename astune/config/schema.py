"""The configuration: one typed tree. Every key, its type, its default and its one-line meaning stand here once;
`default_config/default.yaml` is written from this file and a test keeps the two equal.

An unknown key, a wrong type or a combination that cannot work is a `ConfigError` (see `astune.config.load`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from astune.config.algorithm import AlgorithmConfig as AlgorithmConfig
from astune.config.chat_models import AuxiliaryModelConfig
from astune.config.evaluation import EvaluationConfig as EvaluationConfig
from astune.config.judges import (
    RubricsConfig,
    TaskJudgeConfig,
)
from astune.config.lora import LoraConfig as LoraConfig
from astune.config.online import OnlineConfig as OnlineConfig
from astune.config.section import Located, OptionalPlugin, Plugin, Section
from astune.config.tasks import TaskReaderConfig
from astune.config.trainer import TrainerConfig as TrainerConfig
from astune.config.vllm import VllmConfig
from astune.sampling import MOST_INTEGER, MOST_TEMPERATURE


class ModelConfig(Section):
    path: Annotated[str, Located("folder")] = Field(
        "tiny", description="'tiny' (shipped with ASTune), a folder, or a Hugging Face hub id"
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto' (CUDA if there is one), 'cpu', 'cuda' or 'cuda:N'",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="weights in training and sampling; auto: float32 on CPU, bfloat16 on CUDA"
    )
    lora: LoraConfig = Field(default_factory=LoraConfig, description="train adapters in the place of all weights")
    gradient_checkpointing: bool = Field(False, description="recompute activations in training: slower, less memory")
    max_model_len: PositiveInt | None = Field(
        None, description="most tokens of prompt and answer together; null: what the model was made for"
    )
    tool_call_format: Literal[
        "auto",
        "hermes",
        "qwen3_coder",
        "llama3_json",
        "mistral",
        "mistral_args",
        "mistral_call_id",
        "deepseek_v3",
        "glm",
        "harmony",
        "gemma4",
        "none",
    ] = Field(
        "auto",
        description="how the model writes tool calls; auto: read off its chat template; else hermes, qwen3_coder, "
        "llama3_json, mistral, mistral_args, mistral_call_id, deepseek_v3, glm, harmony, gemma4 or none",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="passed to the chat template, e.g. {enable_thinking: false}"
    )


class RolloutConfig(Section):
    agentscope_learn_protocol: OptionalPlugin = Field(
        None,
        description="the workflow: 'package.module:Name' or 'path/file.py:Name', a Workflow class or a function",
    )
    num_repeat: PositiveInt = Field(8, description="attempts at each task: the group that advantages compare")
    max_concurrent: PositiveInt = Field(64, description="episodes under way at the same time")
    engine: Literal["torch", "vllm"] = Field(
        "torch",
        description="with backbone local, what answers the agents: the sampler in this process, or a vLLM server",
    )
    vllm: VllmConfig = Field(default_factory=VllmConfig, description="that server")
    workers: NonNegativeInt = Field(
        0,
        description="processes that play the episodes: beside the engine's on this machine, with verl on all nodes of "
        "the cluster; 0: none, the engine's own plays them",
    )
    max_turns: PositiveInt = Field(20, description="most model calls in one episode")
    max_episode_tokens: PositiveInt | None = Field(
        None, description="most tokens sampled in one episode, by all its agents; null: no limit"
    )
    max_tokens: PositiveInt = Field(
        1024, le=MOST_INTEGER, description="most tokens of one answer, unless the agent asks for fewer"
    )
    temperature: float = Field(
        1.0,
        ge=0.0,
        le=MOST_TEMPERATURE,
        description="of training episodes, unless the agent sets its own; below 0.01 is greedy, and not trained",
    )
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="of training episodes, unless the agent sets its own")
    top_k: NonNegativeInt = Field(0, le=MOST_INTEGER, description="of training episodes; 0: whole vocabulary")
    allow_inexact: bool = Field(
        False, description="train on turns whose token ids were made from text, as their source gave none"
    )
    auxiliary_models: dict[str, AuxiliaryModelConfig] = Field(
        default_factory=dict,
        description="chat APIs for agents that are not the policy, by name: {base_url, model, ...}",
    )
    episode_timeout: PositiveFloat = Field(600.0, description="seconds after which an episode is stopped and counted")


class SynchronizerConfig(Section):
    style: Literal["fixed", "async", "dynamic_by_explorer", "dynamic_by_trainer"] = Field(
        "fixed",
        description="fixed: rollouts and training take turns; async: rollouts go on while the model is trained; "
        "dynamic_by_explorer or dynamic_by_trainer: weights are handed over when that side asks (trinity alone)",
    )
    max_staleness: NonNegativeInt | None = Field(
        None,
        description="most steps that the weights which sampled a trained token are behind those in training; null: any "
        "number, which async takes on trinity alone",
    )
    quorum: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="part of a step's episodes that have to end; the others are cut off after the patience, and not "
        "trained; 1: all",
    )
    patience: PositiveFloat = Field(30.0, description="seconds that a step waits for more, once it has its quorum")
    interval: PositiveInt = Field(1, description="steps from one hand-over of weights to the next (trinity alone)")
    offset: NonNegativeInt = Field(
        0, description="style fixed: steps that rollouts may be ahead; 0: none, 1: one step off-policy (trinity alone)"
    )


class DebugConfig(Section):
    model: Annotated[str | None, Located("model")] = Field(
        None,
        pattern=r"^(human|endpoints|scripted:.+|replay:.+|https?://.+)$",
        description="what answers: 'human', 'scripted:FILE', 'replay:FILE', 'endpoints' or an address; null: "
        "astune.model; --model sets it",
    )
    endpoints: tuple[AuxiliaryModelConfig, ...] = Field(
        (), description="chat APIs for model 'endpoints', the next where one fails: [{base_url, model, ...}]"
    )
    split: Literal["training", "validation"] = Field("training", description="where the tasks come from; --split")
    tasks: tuple[str, ...] = Field((), description="ids of the tasks to run; empty: the first num_tasks; --task")
    index: NonNegativeInt = Field(0, description="number of the first task, from 0; --index")
    num_tasks: PositiveInt = Field(1, description="tasks to run; --limit")
    num_repeat: PositiveInt = Field(1, description="attempts at each, a group; --repeat")
    filter: str | None = Field(
        None, description="with model replay: which episodes, as 'reward<0.5' or 'error=judge'; null: all; --filter"
    )
    step: bool = Field(False, description="stop at every model call, tool result and verdict; --step")
    commands: Annotated[str | None, Located("file")] = Field(
        None, description="file of commands for the stops, one in a line; --commands"
    )
    with_update: bool = Field(
        False, description="show what one optimizer step would change, with a local model; --with-update"
    )
    studio_url: str | None = Field(
        None, pattern=r"^https?://.+", description="address of AgentScope Studio, which then shows the messages"
    )


class MonitorConfig(Section):
    check_invariants: bool = Field(
        False, description="check every episode and every step against the rules of the context tracker (debug does)"
    )
    tensorboard: bool = Field(True, description="write TensorBoard events")
    progress: Literal["auto", "bar", "plain", "off"] = Field(
        "auto", description="auto: bars on a terminal, lines elsewhere"
    )
    store: str | None = Field(
        None,
        description="database that gets episodes and samples of a run besides: sqlite:///FILE or postgresql://...; "
        "null: none",
    )


class AstuneConfig(Section):
    project_name: str = Field("astune", description="first folder under runs_dir")
    experiment_name: str | None = Field(None, description="second folder under runs_dir; null: name of the config file")
    runs_dir: str = Field("runs", description="where runs are kept; relative to the working directory")
    backbone: Plugin = Field(
        "local", description="'debug', 'local', 'trinity', 'verl' or a plug-in; --backbone sets it"
    )
    resume: bool = Field(False, description="go on from the newest checkpoint of the same run; --resume sets it")
    allow_changes: bool = Field(
        False, description="with resume: go on though options are not the run's own; --allow-changes sets it"
    )
    seed: NonNegativeInt = Field(42, description="one seed for task order, sampling and everything else")
    model: ModelConfig = Field(default_factory=ModelConfig, description="the model that is trained")
    task_reader: TaskReaderConfig = Field(default_factory=TaskReaderConfig, description="where tasks come from")
    rollout: RolloutConfig = Field(default_factory=RolloutConfig, description="how episodes are run")
    task_judge: TaskJudgeConfig = Field(default_factory=TaskJudgeConfig, description="how episodes are judged")
    rubrics: RubricsConfig = Field(
        default_factory=RubricsConfig, description="used by `rubrics`, which learns a rubric from examples"
    )
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig, description="from rewards to the loss")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="the optimizer and the length of the run")
    synchronizer: SynchronizerConfig = Field(
        default_factory=SynchronizerConfig, description="how far rollouts and training may be apart"
    )
    stages: tuple[dict[str, Any], ...] = Field(
        (),
        description="what is trained one after the other: sections of astune for each stage, laid over the others: "
        "[{algorithm: {method: sft}, trainer: {...}}, {algorithm: {...}, ...}]",
    )
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="when held-out tasks are run")
    debug: DebugConfig = Field(default_factory=DebugConfig, description="used by --backbone=debug only")
    monitor: MonitorConfig = Field(default_factory=MonitorConfig, description="what a run shows and keeps")
    online: OnlineConfig = Field(
        default_factory=OnlineConfig, description="used by `astune online`, which trains from what users say"
    )


class Config(Section):
    astune: AstuneConfig = Field(default_factory=AstuneConfig, description="everything ASTune reads")
    trinity: dict[str, Any] = Field(
        default_factory=dict,
        description="Trinity's own keys, on top of what is converted from astune; used by --backbone=trinity only",
    )
    verl: dict[str, Any] = Field(
        default_factory=dict,
        description="verl's own keys, on top of what is converted from astune; used by --backbone=verl only",
    )
