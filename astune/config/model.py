"""`astune.model`: the model that is trained, and low-rank adapters in the place of all its weights. `astune.models`:
several of them in one run, each with what is its own laid over what is the run's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NaiveDatetime, PositiveInt

from astune.config.section import LaidOver, Located, OnTrinity, OnVerl, Section, fate


class LoraConfig(Section):
    rank: PositiveInt | None = Field(
        None,
        description="rank of the adapters, 8 to 64 as a rule; null: no adapter, all weights are trained",
        json_schema_extra=fate(
            OnVerl(
                to={
                    "actor_rollout_ref.model.lora_rank": "same",
                    "actor_rollout_ref.rollout.load_format": "base_of_adapter",
                }
            )
        ),
    )
    alpha: PositiveInt = Field(
        32,
        description="what an adapter adds counts alpha / rank times",
        json_schema_extra=fate(OnVerl(to={"actor_rollout_ref.model.lora_alpha": "of_adapter"})),
    )
    targets: tuple[str, ...] = Field(
        (),
        description="linear layers that get an adapter, as [q_proj, v_proj]; empty: all but the head",
        json_schema_extra=fate(OnVerl(to={"actor_rollout_ref.model.target_modules": "targets"})),
    )
    rslora: bool = Field(
        False,
        description="count alpha / sqrt(rank) times instead (rank-stabilised, for high ranks)",
        json_schema_extra=fate(
            OnVerl(
                unsupported="verl tells peft rank, alpha and layers of an adapter and nothing else; take the key "
                "out and set alpha higher, or use the backbone 'local'"
            )
        ),
    )
    dora: bool = Field(
        False,
        description="train the length of each row of a weight too (DoRA): slower",
        json_schema_extra=fate(
            OnVerl(
                unsupported="verl trains no such adapters with FSDP, and vLLM serves none; take the key out, or "
                "use the backbone 'local'"
            )
        ),
    )
    base: Literal["dtype", "nf4", "fp4"] = Field(
        "dtype",
        description="weights below the adapters: as model.dtype says, or in 4 bits by bitsandbytes",
        json_schema_extra=fate(
            OnVerl(
                unsupported="verl shares the base out over the GPUs in float32, and in 4 bits not at all; take the "
                "key out, or use the backbone 'local'"
            )
        ),
    )


class ModelConfig(Section):
    path: Annotated[str, Located("folder")] = Field(
        "tiny",
        description="'tiny' (shipped with ASTune), a folder, or a Hugging Face hub id",
        json_schema_extra=fate(
            OnTrinity(
                to={"model.model_path": "model_path"},
                ours="the workflow inside Trinity's runners reads tokenizer and chat template there",
            ),
            OnVerl(
                to={"actor_rollout_ref.model.path": "model_folder"},
                ours="the chat format is read from it; an adapter is loaded over its base",
            ),
        ),
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto' (CUDA if there is one), 'cpu', 'cuda' or 'cuda:N'",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Ray decides where models run; take the key out, or use the backbone 'local'",
                own_server=True,
            ),
            OnVerl(to={"trainer.device": "device"}),
        ),
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="weights in training and sampling; auto: float32 on CPU, bfloat16 on CUDA",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "explorer.rollout_model.dtype": "dtype",
                    "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.dtype": "dtype",
                },
                tinker="the tinker server decides in which numbers it computes; take the key out",
                own_server=True,
            ),
            OnVerl(
                to={
                    "actor_rollout_ref.rollout.dtype": "precision",
                    "actor_rollout_ref.actor.fsdp_config.mixed_precision": "precisions",
                    "actor_rollout_ref.ref.fsdp_config.mixed_precision": "precisions",
                }
            ),
        ),
    )
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = Field(
        "auto",
        description="what computes attention where the model is trained, on local also where it is sampled; auto: "
        "flash_attention_2 on GPUs in half precision where it can be, elsewhere torch's other kernels",
        json_schema_extra=fate(
            OnTrinity(
                to={"trainer.trainer_config.actor_rollout_ref.model.override_config.attn_implementation": "attention"},
                tinker="the tinker server decides how attention is computed; take the key out",
            ),
            OnVerl(to={"actor_rollout_ref.model.override_config.attn_implementation": "attention"}),
        ),
    )
    lora: LoraConfig = Field(
        default_factory=LoraConfig,
        description="train adapters in the place of all weights",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="our rollouts ask the completions endpoint of Trinity's engine, which answers without "
                "the adapter; take the key out, or use the backbone 'local'"
            )
        ),
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute activations in training: slower, less memory",
        json_schema_extra=fate(
            OnTrinity(
                to={"trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing": "same"},
                if_set=True,
                tinker="the tinker server decides whether activations are recomputed; take the key out",
            ),
            OnVerl(to={"actor_rollout_ref.model.enable_gradient_checkpointing": "same"}),
        ),
    )
    max_model_len: PositiveInt | None = Field(
        None,
        description="most tokens of prompt and answer together; null: what the model was made for",
        json_schema_extra=fate(
            OnTrinity(to={"model.max_model_len": "max_model_len"}),
            OnVerl(to={"actor_rollout_ref.rollout.max_model_len": "same"}),
        ),
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
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "glm",
        "harmony",
        "gemma4",
        "minicpm",
        "minicpm5",
        "lfm2",
        "granite",
        "apertus",
        "apriel",
        "nemotron_nano",
        "kimi_k2",
        "minimax_m1",
        "minimax_m2",
        "seed_oss",
        "hunyuan",
        "hunyuan_3",
        "cohere",
        "gigachat",
        "functionary",
        "none",
    ] = Field(
        "auto",
        description="how the model writes tool calls; auto: found by trying how its chat template writes one; else one "
        "of the formats in docs/context_tracker.md, or none",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="passed to the chat template, e.g. {enable_thinking: false}"
    )
    clock: NaiveDatetime | None = Field(
        None,
        description="time that a chat template writes which asks for it, as 2026-01-31T12:00; null: that of the run's "
        "start, also when it is resumed or replayed",
    )


class NamedModelConfig(Section):
    """One of several models: an adapter over a base, which those of one path have in common, or a whole model."""

    path: Annotated[str | None, Located("folder")] = Field(
        None,
        description="weights, tokenizer and chat template of its own, as astune.model.path; null: those there. All "
        "weights are trained where lora.rank is null",
    )
    frozen: bool = Field(False, description="it answers, and is never trained")
    start_from: Annotated[str | None, Located("folder")] = Field(
        None,
        description="adapter that it begins with, as runs/demo/x/checkpoints/step_000100/wolf; null: the base as it is",
    )
    lora: Annotated[dict[str, Any], LaidOver("astune.model.lora")] = Field(
        default_factory=dict, description="keys of astune.model.lora that are other than there"
    )
    trainer: Annotated[dict[str, Any], LaidOver("astune.trainer")] = Field(
        default_factory=dict, description="keys of its optimizer and schedule that are other than in astune.trainer"
    )
    algorithm: Annotated[dict[str, Any], LaidOver("astune.algorithm")] = Field(
        default_factory=dict, description="keys of astune.algorithm that are other than there"
    )

    past_of: str | None = Field(
        None,
        description="name of the model whose earlier versions it is: one is drawn for all attempts at a task, and none "
        "is trained; evaluations are against the first",
    )
    size: int = Field(10, ge=2, description="with past_of, versions that are kept: the first, and the newest")
    every: PositiveInt = Field(5, description="with past_of, versions of that model from one that is kept to the next")
    draw: Literal["uniform", "by_win_rate"] = Field(
        "uniform", description="with past_of, by_win_rate: the more often one wins, the more often it is met"
    )

    @property
    def learns(self) -> bool:
        return not self.frozen and self.past_of is None
