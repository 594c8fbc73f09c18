"""`astune.trainer`: the optimizer and the length of the run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from astune.config.section import Located, Section


class TrainerConfig(Section):
    examples: Annotated[str | None, Located("file")] = Field(
        None, description="methods sft and dpo: JSON Lines file of examples, or for sft episodes that a run recorded"
    )
    examples_of_run: bool = Field(
        False, description="in astune.stages: learn from the episodes that the earlier stages of the run played"
    )
    examples_filter: str | None = Field(
        None, description="method sft: which recorded episodes, as 'reward>=1'; null: all"
    )
    held_out_examples: Annotated[str | None, Located("file")] = Field(
        None, description="method sft on local: JSON Lines file of examples whose loss every evaluation tells"
    )
    total_steps: PositiveInt | None = Field(100, description="optimizer steps of the run; null: total_epochs decides")
    total_epochs: PositiveInt | None = Field(
        None, description="passes over the training tasks or examples; the smaller of both ends the run"
    )
    tasks_per_step: PositiveInt = Field(
        8, description="tasks in one step, times rollout.num_repeat episodes; methods sft and dpo: examples in one step"
    )
    updates_per_step: PositiveInt = Field(1, description="optimizer updates the episodes of a step are split into")
    optimizer: Literal["adamw", "adamw_fused", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_fused: one pass over the weights, faster on CUDA; adamw_8bit: averages in 8 bits, a quarter "
        "of the memory, by bitsandbytes",
    )
    learning_rate: PositiveFloat = Field(1e-6, description="AdamW learning rate after warm-up")
    warmup_steps: NonNegativeInt = Field(0, description="steps of linear learning-rate warm-up")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="after warm-up, towards 0 at the end"
    )
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW weight decay")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW momentum of gradient and squared gradient")
    max_grad_norm: PositiveFloat = Field(1.0, description="gradients are scaled down to this norm")
    micro_batch_tokens: PositiveInt = Field(
        16384, description="tokens in one forward and backward pass; memory grows with it"
    )
    max_skipped_updates: PositiveInt = Field(
        5, description="updates in a row skipped for NaN or infinity before the run stops"
    )
    max_unjudged_steps: NonNegativeInt = Field(
        3, description="steps in a row in which no episode could be judged before the run stops; 0: it goes on"
    )
    save_every: NonNegativeInt = Field(
        0, description="steps between checkpoints, beside those of save_minutes, at the end and on Ctrl-C; 0: none"
    )
    save_minutes: NonNegativeFloat = Field(
        10.0,
        description="minutes after which the step that is done is saved, which a crash then loses at most; 0: none",
    )
    keep_checkpoints: PositiveInt = Field(2, description="older checkpoints are deleted")
    keep_best: str | None = Field(
        None,
        description="held-out figure, as eval/greedy/success, whose best checkpoint is saved and kept beside those; "
        "null: none",
    )
