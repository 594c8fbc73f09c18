"""`astune.trainer`: the optimizer and the length of the run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from astune.config.section import READER, Located, OnTrinity, OnVerl, Section, fate


class CurriculumConfig(Section):
    enabled: bool = Field(False, description="draw the tasks of a step by what there is to learn from them")
    fade: float = Field(
        0.5, ge=0.0, lt=1.0, description="what earlier attempts at a task still count once it is played again"
    )
    new: float = Field(
        1.0, gt=0.0, le=1.0, description="part of a step for tasks that were never played, while there are any"
    )
    look_again: float = Field(
        0.125,
        gt=0.0,
        le=1.0,
        description="part of a step for those left alone the longest: what is mastered or hopeless gets no other place",
    )


class TrainerConfig(Section):
    examples: Annotated[str | None, Located("file")] = Field(
        None,
        description="methods sft and dpo: JSON Lines file of examples, or for sft episodes that a run recorded",
        json_schema_extra=fate(OnTrinity(ours="our sample strategy, which reads the examples", methods=("sft", "dpo"))),
    )
    examples_of_run: bool = Field(
        False,
        description="in astune.stages: learn from the episodes that the earlier stages of the run played",
        json_schema_extra=fate(OnTrinity(unsupported="Trinity trains in one stage; take the key out")),
    )
    examples_filter: str | None = Field(
        None,
        description="method sft: which recorded episodes, as 'reward>=1'; null: all",
        json_schema_extra=fate(OnTrinity(ours="our sample strategy, which reads the examples", methods=("sft",))),
    )
    held_out_examples: Annotated[str | None, Located("file")] = Field(
        None,
        description="method sft on local: JSON Lines file of examples whose loss every evaluation tells",
        json_schema_extra=fate(
            OnTrinity(unsupported="only the backbone 'local' tells their loss; take the key out", methods=("sft",))
        ),
    )
    total_steps: PositiveInt | None = Field(
        100,
        description="optimizer steps of the run; null: total_epochs decides",
        json_schema_extra=fate(
            OnTrinity(to={"buffer.total_steps": "steps", "trainer.total_steps": "trainer_steps"}, ours=READER)
        ),
    )
    total_epochs: PositiveInt | None = Field(
        None,
        description="passes over the training tasks or examples; the smaller of both ends the run",
        json_schema_extra=fate(
            OnTrinity(to={"buffer.total_steps": "steps", "trainer.total_steps": "trainer_steps"}, ours=READER)
        ),
    )
    tasks_per_step: PositiveInt = Field(
        8,
        description="tasks in one step, times rollout.num_repeat episodes; methods sft and dpo: examples in one step",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "buffer.batch_size": "same",
                    "buffer.train_batch_size": "rows_per_step",
                    "explorer.runner_per_model": "runners",
                },
                ours=READER,
            )
        ),
    )
    curriculum: CurriculumConfig = Field(
        default_factory=CurriculumConfig,
        description="which tasks a step gets, by what the policy did on them",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity's scheduler hands no results back to the reader that gives it tasks; take the key "
                "out",
                methods=("rl", "sft", "dpo"),
            )
        ),
    )
    updates_per_step: PositiveInt = Field(
        1,
        description="optimizer updates the episodes of a step are split into",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="a step is one optimizer update on Trinity; take the key out, or lower "
                "astune.trainer.tasks_per_step"
            )
        ),
    )
    update: str = Field(
        "all",
        description="with astune.models, whose turn it is to learn: 'all', each in every step; 'alternate(5)', one "
        "after the other, 5 steps each; or names, a step each, as 'wolf, wolf, villager'; the others stay as they are",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity trains one model; take the key out"),
            OnVerl(unsupported="verl trains one adapter; take the key out"),
        ),
    )
    optimizer: Literal["adamw", "adamw_fused", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_fused: one pass over the weights, faster on CUDA; adamw_8bit: averages in 8 bits, a quarter "
        "of the memory, by bitsandbytes",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity has optimizers of its own; take the key out"),
            OnVerl(
                to={"actor_rollout_ref.actor.optim.override_optimizer_config": "optimizer"},
                refused={
                    "adamw_8bit": (
                        "bitsandbytes takes no weights that are shared out over GPUs, and no other number of "
                        "GPUs goes on from what torchao's keeps; expected 'adamw' or 'adamw_fused', and "
                        "verl.actor_rollout_ref.actor.fsdp_config.optimizer_offload: true where memory is "
                        "short"
                    )
                },
            ),
        ),
    )
    learning_rate: PositiveFloat = Field(
        1e-6,
        description="AdamW learning rate after warm-up",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.optimizer.lr": "same"}),
            OnVerl(
                to={"actor_rollout_ref.actor.optim.lr": "same"},
                ours="each step tells verl's optimizer its own, by astune.trainer.lr_schedule",
            ),
        ),
    )
    warmup_steps: NonNegativeInt = Field(
        0,
        description="steps of linear learning-rate warm-up",
        json_schema_extra=fate(OnTrinity(to={"algorithm.optimizer.lr_warmup_steps": "same"})),
    )
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="after warm-up, towards 0 at the end",
        json_schema_extra=fate(OnTrinity(to={"algorithm.optimizer.lr_scheduler_type": "lr_schedule"})),
    )
    weight_decay: NonNegativeFloat = Field(
        0.0,
        description="AdamW weight decay",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.optimizer.weight_decay": "same"}),
            OnVerl(to={"actor_rollout_ref.actor.optim.weight_decay": "same"}),
        ),
    )
    betas: tuple[float, float] = Field(
        (0.9, 0.95),
        description="AdamW momentum of gradient and squared gradient",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.optimizer.betas": "as_list"}),
            OnVerl(to={"actor_rollout_ref.actor.optim.betas": "as_list"}),
        ),
    )
    max_grad_norm: PositiveFloat = Field(
        1.0,
        description="gradients are scaled down to this norm",
        json_schema_extra=fate(
            OnTrinity(to={"trainer.grad_clip": "same", "algorithm.optimizer.clip_grad": "same"}),
            OnVerl(to={"actor_rollout_ref.actor.optim.clip_grad": "same"}),
        ),
    )
    micro_batch_tokens: PositiveInt = Field(
        16384,
        description="tokens in one forward and backward pass; memory grows with it",
        json_schema_extra=fate(
            OnTrinity(
                to={"trainer.max_token_len_per_gpu": "same"},
                tinker="the tinker server cuts its batches itself; take the key out",
                own_server=True,
            ),
            OnVerl(
                to={"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "same"},
                ours="on each GPU; more where a single row has more",
            ),
        ),
    )
    max_skipped_updates: PositiveInt = Field(
        5,
        description="updates in a row skipped for NaN or infinity before the run stops",
        json_schema_extra=fate(OnTrinity(unsupported="Trinity does not count skipped updates; take the key out")),
    )
    max_unjudged_steps: NonNegativeInt = Field(
        3,
        description="steps in a row in which no episode could be judged before the run stops; 0: it goes on",
        json_schema_extra=fate(
            OnTrinity(ours="the process that was started, which looks at each step and ends the run", methods=("rl",))
        ),
    )
    max_failed_tool_steps: NonNegativeInt = Field(
        0,
        description="steps in a row in which every call of a tool failed before the run stops; 0: it goes on",
        json_schema_extra=fate(
            OnTrinity(ours="the process that was started, which looks at each step and ends the run", methods=("rl",))
        ),
    )
    save_every: NonNegativeInt = Field(
        0,
        description="steps between checkpoints, beside those of save_minutes, at the end and on Ctrl-C; 0: none",
        json_schema_extra=fate(OnTrinity(to={"trainer.save_interval": "same"})),
    )
    save_minutes: NonNegativeFloat = Field(
        10.0,
        description="minutes after which the step that is done is saved, which a crash then loses at most; 0: none",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity saves by steps; take the key out, and set astune.trainer.save_every")
        ),
    )
    keep_checkpoints: PositiveInt = Field(
        2,
        description="older checkpoints are deleted",
        json_schema_extra=fate(
            OnTrinity(
                to={"trainer.max_checkpoints_to_keep": "same"},
                tinker="Trinity never deletes a checkpoint of a tinker server; take the key out",
            )
        ),
    )
    keep_best: str | None = Field(
        None,
        description="held-out figure, as eval/greedy/success, whose best checkpoint is saved and kept beside those; "
        "'lowest eval/greedy/judge/x': the lowest is the best; null: none",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity saves and deletes checkpoints by steps alone; take the key out")
        ),
    )
