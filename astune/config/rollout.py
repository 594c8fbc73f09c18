"""`astune.rollout` and `astune.synchronizer`: how episodes are run, and how far they may be apart from training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from astune.config.chat_models import AuxiliaryModelConfig
from astune.config.section import LOOP, RUNNERS, Located, OnTrinity, OnVerl, OptionalPlugin, Section, fate
from astune.sampling import MOST_INTEGER, MOST_TEMPERATURE

OURS = "AstuneSandbox"
NO_ISOLATION = "none"


class VllmConfig(Section):
    """The server of `engine: vllm`, which the run starts or which runs already."""

    base_url: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None,
        description="a server that runs already, as http://host:8000/v1, in place of one that the run starts; weights "
        "go to it through astune.runs_dir, which it must see at the same place",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity starts vLLM itself; take the key out"),
            OnVerl(unsupported="verl starts servers itself; take the key out, or use the backbone 'local'"),
        ),
    )
    python: str | None = Field(
        None,
        description="interpreter of the environment that has vLLM, as 'vllm-env/bin/python'; null: that of the run",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity starts vLLM itself, in its own environment; take the key out"),
            OnVerl(
                unsupported="verl starts vLLM itself, in its own environment; take the key out, or use the "
                "backbone 'local'"
            ),
        ),
    )
    gpus: tuple[NonNegativeInt, ...] = Field(
        (),
        description="numbers of the GPUs that it shares a model out to; empty, or with astune.model.device's own among "
        "them: it sleeps while the model is trained",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity starts vLLM itself and shares out the GPUs: trinity.explorer.rollout_model; "
                "take the key out"
            ),
            OnVerl(
                unsupported="verl starts servers itself and shares out the GPUs: verl.trainer.n_gpus_per_node; "
                "take the key out, or use the backbone 'local'"
            ),
        ),
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None,
        description="part of each GPU's memory that it takes; null: 0.9, and 0.4 beside the trainer",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity starts vLLM itself: trinity.explorer.rollout_model; take the key out"),
            OnVerl(
                unsupported="verl starts servers itself: verl.actor_rollout_ref.rollout.gpu_memory_utilization; "
                "take the key out, or use the backbone 'local'"
            ),
        ),
    )


class SandboxLimits(Section):
    """The limits of an `AstuneSandbox`."""

    memory_mb: PositiveInt = Field(512, description="of all its processes together; what exceeds it is ended")
    disk_mb: PositiveInt = Field(
        64, description="of each of /workspace, /tmp and /dev/shm, which are in memory, and of one file"
    )
    files: PositiveInt = Field(10_000, description="files and folders in all three")
    processes: PositiveInt = Field(64, description="processes and threads at the same time")
    cpu_seconds: PositiveFloat = Field(300.0, description="of all its commands, from one reset to the next")
    command_seconds: PositiveFloat = Field(60.0, description="of one command")
    output_kb: PositiveInt = Field(256, description="that a command writes to stdout, and to stderr")

    @property
    def longest_command(self) -> int:
        """Bytes of a command with its arguments."""
        return 100_000

    def for_init(self) -> dict[str, float]:
        """Limits as the first process inside is told them: those of all together, and the kernel's for each process."""
        return {
            "memory": self.memory_mb << 20,
            "cpu": self.cpu_seconds,
            "files": self.files,
            "RLIMIT_DATA": self.memory_mb << 20,
            "RLIMIT_FSIZE": self.disk_mb << 20,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CPU": int(self.cpu_seconds) + 1,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
        }


class WorkspaceConfig(Section):
    """The workspace that each episode gets as `tuner.workspace`."""

    type: OptionalPlugin = Field(
        None,
        description="AstuneSandbox (bubblewrap, offline and bounded), a class of agentscope.workspace as "
        "DockerWorkspace, 'package.module:Name', or `none`: files in a folder of this machine and no isolation at all; "
        "null: no workspace",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of that class")
    isolation: Literal["episode", "task", "run"] = Field(
        "episode",
        description="what has a workspace of its own: each episode, the attempts at a task that are under way "
        "together, or each process of the run that plays episodes",
    )
    template: Annotated[str | None, Located("file")] = Field(
        None, description="folder whose files are in the workspace at the beginning"
    )
    warm: NonNegativeInt = Field(
        2, description="workspaces that are kept ready for the next episodes, in each process that plays them"
    )
    limits: SandboxLimits = Field(default_factory=SandboxLimits, description="of an AstuneSandbox")
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(:\d{1,5})?$")]] = Field(
        default_factory=list,
        description="hosts that commands in an AstuneSandbox reach over HTTPS, as 'pypi.org' or 'mirror:8443'; never "
        "an address of this machine; empty: no network",
    )
    artifacts_mb: NonNegativeInt = Field(
        0,
        description="most MB of an episode's files that are kept for its judge (`Episode.artifacts`), with "
        "AstuneSandbox; 0: none are kept",
    )


class ContextConfig(Section):
    """What becomes of a conversation that grows towards the end of the model's context, whatever agent has it."""

    strategy: Literal["none", "discard", "summarise", "restart"] = Field(
        "none",
        description="discard: old tool results are taken out; summarise: the model sums up what is old, and the last "
        "answers stay; restart: it goes on from the question and its summary alone; none: the agent sees to it",
    )
    at: PositiveFloat = Field(
        0.75, description="tokens of a prompt from which on that happens; up to 1: share of the model's context"
    )
    keep: PositiveInt = Field(1, description="the last answers, which stay as they are with the results of their calls")
    model: str | None = Field(
        None,
        description="one of astune.rollout.auxiliary_models, which writes the summaries; null: the policy, which is "
        "trained on them as on all that it writes",
    )
    prompt: str | None = Field(
        None, min_length=1, description="the message that asks for a summary; null: one for tasks of any kind"
    )


class RolloutConfig(Section):
    agentscope_learn_protocol: OptionalPlugin = Field(
        None,
        description="the workflow: 'package.module:Name' or 'path/file.py:Name', a Workflow class or a function",
    )
    num_repeat: PositiveInt = Field(
        8,
        description="attempts at each task: the group that advantages compare",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "algorithm.repeat_times": "same",
                    "buffer.train_batch_size": "rows_per_step",
                    "explorer.runner_per_model": "runners",
                }
            )
        ),
    )
    max_concurrent: PositiveInt = Field(
        64,
        description="episodes under way at the same time",
        json_schema_extra=fate(
            OnTrinity(to={"explorer.runner_per_model": "runners"}),
            OnVerl(to={"actor_rollout_ref.rollout.max_num_seqs": "same"}, ours=LOOP),
        ),
    )
    engine: Literal["torch", "vllm"] = Field(
        "torch",
        description="with backbone local, what answers the agents: the sampler in this process, or a vLLM server",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity starts vLLM itself, with the keys under trinity.explorer.rollout_model; take "
                "the key out"
            ),
            OnVerl(
                unsupported="verl starts servers itself: verl.actor_rollout_ref.rollout.name; take the key out, or "
                "use the backbone 'local'"
            ),
        ),
    )
    vllm: VllmConfig = Field(default_factory=VllmConfig, description="that server")
    workers: NonNegativeInt = Field(
        0,
        description="processes that play the episodes: beside the engine's on this machine, with verl on all nodes of "
        "the cluster; 0: none, the engine's own plays them",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity's runners play the episodes, each in a process of its own on any node of the "
                "cluster: astune.rollout.max_concurrent says how many there are; take the key out"
            ),
            OnVerl(ours="actors of ASTune's own on all nodes, which ask verl's servers"),
        ),
    )
    max_turns: PositiveInt = Field(20, description="most model calls in one episode")
    max_episode_tokens: PositiveInt | None = Field(
        None, description="most tokens sampled in one episode, by all its agents; null: no limit"
    )
    max_tokens: PositiveInt = Field(
        1024,
        le=MOST_INTEGER,
        description="most tokens of one answer, unless the agent asks for fewer",
        json_schema_extra=fate(OnTrinity(to={"model.max_response_tokens": "same"}, ours=RUNNERS)),
    )
    temperature: float = Field(
        1.0,
        ge=0.0,
        le=MOST_TEMPERATURE,
        description="of training episodes, unless the agent sets its own; below 0.01 is greedy, and not trained",
        json_schema_extra=fate(OnTrinity(to={"model.temperature": "temperature"}, ours=RUNNERS)),
    )
    top_p: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="of training episodes, unless the agent sets its own",
        json_schema_extra=fate(OnTrinity(to={"model.top_p": "same"}, ours=RUNNERS)),
    )
    top_k: NonNegativeInt = Field(
        0,
        le=MOST_INTEGER,
        description="of training episodes; 0: whole vocabulary",
        json_schema_extra=fate(OnTrinity(to={"model.top_k": "top_k"}, ours=RUNNERS)),
    )
    allow_inexact: bool = Field(
        False, description="train on turns whose token ids were made from text, as their source gave none"
    )
    auxiliary_models: dict[str, AuxiliaryModelConfig] = Field(
        default_factory=dict,
        description="chat APIs for agents that are not the policy, by name: {base_url, model, ...}",
    )
    agents: dict[str, str] = Field(
        default_factory=dict,
        description="with astune.models, the model that agents run on by patterns of their names, as {'wolf_*': wolf}, "
        "unless the workflow names one itself (`policy=`)",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity trains one model, which all agents run on; take the key out"),
            OnVerl(unsupported="verl trains one adapter, which all agents run on; take the key out"),
        ),
    )
    workspace: WorkspaceConfig = Field(
        default_factory=WorkspaceConfig,
        description="where the tools of an agent act: `tuner.workspace`",
        json_schema_extra=fate(OnTrinity(ours=RUNNERS)),
    )
    context: ContextConfig = Field(
        default_factory=ContextConfig,
        description="what becomes of a conversation that nears the end of the model's context",
    )
    episode_timeout: PositiveFloat = Field(
        600.0,
        description="seconds after which an episode is stopped and counted",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "explorer.max_timeout": "task_timeout",
                    "synchronizer.sync_timeout": "wait_timeout",
                    "buffer.trainer_input.experience_buffer.max_read_timeout": "wait_timeout",
                },
                ours=RUNNERS,
            )
        ),
    )


class SynchronizerConfig(Section):
    style: Literal["fixed", "async", "dynamic_by_explorer", "dynamic_by_trainer"] = Field(
        "fixed",
        description="fixed: rollouts and training take turns; async: rollouts go on while the model is trained; "
        "dynamic_by_explorer or dynamic_by_trainer: weights are handed over when that side asks (trinity alone)",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "synchronizer.sync_style": "sync_style",
                    "trainer.total_steps": "trainer_steps",
                    "buffer.trainer_input.experience_buffer.capacity": "waiting_batches",
                },
                methods=("rl",),
            ),
            OnVerl(ours="the training loop, which is ASTune's own; async asks for servers on GPUs of their own"),
        ),
    )
    max_staleness: NonNegativeInt | None = Field(
        None,
        description="most steps that the weights which sampled a trained token are behind those in training; null: any "
        "number, which async takes on trinity alone",
        json_schema_extra=fate(OnTrinity(to={"algorithm.sample_strategy_args.max_staleness": "same"}, methods=("rl",))),
    )
    quorum: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="part of a step's episodes that have to end; the others are cut off after the patience, and not "
        "trained; 1: all",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity cuts off tasks by rules of its own, as trinity.explorer.over_rollout says; "
                "take the key out"
            )
        ),
    )
    patience: PositiveFloat = Field(
        30.0,
        description="seconds that a step waits for more, once it has its quorum",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity cuts off tasks by rules of its own, as trinity.explorer.over_rollout says; "
                "take the key out"
            )
        ),
    )
    interval: PositiveInt = Field(
        1,
        description="steps from one hand-over of weights to the next (trinity alone)",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "synchronizer.sync_interval": "same",
                    "buffer.trainer_input.experience_buffer.capacity": "waiting_batches",
                    "explorer.runner_per_model": "runners",
                },
                methods=("rl",),
            ),
            OnVerl(unsupported="verl gets the weights after every step here; take the key out"),
        ),
    )
    offset: NonNegativeInt = Field(
        0,
        description="style fixed: steps that rollouts may be ahead; 0: none, 1: one step off-policy (trinity alone)",
        json_schema_extra=fate(
            OnTrinity(to={"synchronizer.sync_offset": "same", "explorer.runner_per_model": "runners"}, methods=("rl",)),
            OnVerl(unsupported="verl gets the weights after every step here; take the key out"),
        ),
    )
