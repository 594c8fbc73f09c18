"""`astune.algorithm`: from rewards to the loss."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError

from astune.config.chat_models import TeacherConfig
from astune.config.section import RUNNERS, Located, OnTrinity, OnVerl, Plugin, Section, fate
from astune.support.builtin import builtin_name

METHODS = {
    "rl": "astune.methods.rl:Rl",
    "sft": "astune.methods.sft:Sft",
    "dpo": "astune.methods.dpo:Dpo",
    "kto": "astune.methods.kto:Kto",
    "rft": "astune.methods.rft:Rft",
    "distill": "astune.methods.distill:Distill",
}
Preset = Literal["grpo", "dapo", "dr_grpo", "rloo", "reinforce_pp", "gspo", "cispo", "ppo", "minirl", "opmd"]
"""The files of `default_config/presets`."""
PolicyLossName = Literal["ppo_clip", "gspo", "cispo", "minirl", "opmd", "reinforce"]
"""The losses of `astune.backbone.losses.policy`, which needs torch."""

LOSS_ON_VERL = OnVerl(ours="our loss, in verl's training workers")
NO_MINIRL = OnTrinity(unsupported="only the loss 'minirl' has it, which Trinity has not; take the key out")
NO_RUNNING_MEAN = OnTrinity(
    unsupported="Trinity's checkpoints do not keep what advantage 'running_mean' remembers; take the key out",
    methods=("rl", "sft", "dpo"),
)


class CriticConfig(Section):
    learning_rate: PositiveFloat = Field(1e-5, description="AdamW learning rate of the critic")
    warmup_updates: NonNegativeInt = Field(
        0, description="first updates of the run, in which the critic learns and the policy stays as it is"
    )
    gamma: float = Field(1.0, gt=0.0, le=1.0, description="what a reward counts one sampled token earlier")
    gae_lambda: float = Field(
        0.95, ge=0.0, le=1.0, description="advantages: 1: by what was earned to the end; 0: by the critic's next value"
    )
    updates: PositiveInt = Field(1, description="the critic's optimizer updates for each of the policy's")
    value_clip: PositiveFloat | None = Field(
        None, description="with several updates: how far from its first value a value gains by moving; null: any way"
    )


class AlgorithmConfig(Section):
    method: Plugin = Field(
        "rl",
        description="what is learned from: rl: rewards of episodes; sft: example conversations; dpo: preferred against "
        "rejected answers; kto: good and bad answers, one by one; rft: right attempts alone (rejection sampling); "
        "distill: what a teacher thinks of the model's own answers; or a plug-in 'package.module:Name'",
        json_schema_extra=fate(
            OnTrinity(
                ours="where the constant part comes from: with sft and dpo, trinity_sft.yaml and "
                "trinity_dpo.yaml stand on top of trinity_default.yaml",
                methods=("rl", "sft", "dpo"),
            )
        ),
    )
    preset: Preset | None = Field(
        None,
        description="values of a published algorithm, below those of this file: grpo, dapo, dr_grpo, rloo, "
        "reinforce_pp, gspo, cispo, ppo, minirl or opmd; `astune config show` spells them out",
        json_schema_extra=fate(
            OnTrinity(
                ours="where the defaults of the other keys of astune.algorithm come from", methods=("rl", "sft", "dpo")
            )
        ),
    )
    advantage: Plugin = Field(
        "grpo",
        description="within a group: 'grpo', 'dr_grpo', 'rloo', 'rloo_clamped', 'step_wise_grpo'; over the step: "
        "'reinforce_pp', 'reinforce_pp_baseline'; over the run: 'running_mean'; by a critic: 'gae'; or a plug-in "
        "'package.module:function'",
        json_schema_extra=fate(
            OnTrinity(
                to={"algorithm.advantage_fn": "advantage_fn"},
                ours="our samples operator, in Trinity's experience pipeline",
            )
        ),
    )
    step_norm: bool = Field(
        False, description="advantage step_wise_grpo: divided by the number of turns of the episode"
    )
    baseline_by: str | None = Field(
        None,
        description="advantage running_mean: metadata column that says a task's kind; null: its environment's type",
        json_schema_extra=fate(NO_RUNNING_MEAN),
    )
    baseline_decay: float = Field(
        0.9,
        ge=0.0,
        lt=1.0,
        description="advantage running_mean: part of the earlier steps in the mean after a step",
        json_schema_extra=fate(NO_RUNNING_MEAN),
    )
    critic: CriticConfig = Field(
        default_factory=CriticConfig,
        description="advantage gae: the critic",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="advantage 'gae', which alone has a critic, is not on Trinity; take the key out",
                methods=("rl", "sft", "dpo"),
            ),
            OnVerl(ours="our critic, which verl's training workers hold beside the policy"),
        ),
    )
    dynamic_sampling: NonNegativeInt = Field(
        0,
        description="how many times in a step groups without signal are replaced by further tasks (DAPO); 0: never",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity's explorer plays the tasks of a step once; take the key out",
                methods=("rl", "sft", "dpo"),
            )
        ),
    )
    overlong_buffer: NonNegativeInt = Field(
        0, description="last tokens before rollout.max_tokens or the context's end that cost reward (DAPO); 0: none do"
    )
    overlong_penalty: PositiveFloat = Field(
        1.0, description="what an answer that uses up the overlong_buffer costs; one that uses a part of it costs less"
    )
    balance: bool = Field(
        False, description="leave out attempts, so that a task has about as many right as wrong ones (AgentRL)"
    )
    efficiency_bonus: NonNegativeFloat = Field(
        0.0, description="added to the reward of the right attempt with fewest turns, taken off that with most; 0: none"
    )
    loss: PolicyLossName = Field(
        "ppo_clip",
        description="'ppo_clip', 'gspo', 'cispo', 'minirl', 'opmd' or 'reinforce'; docs/algorithms.md says which",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "algorithm.policy_loss_fn": "policy_loss",
                    "algorithm.policy_loss_fn_args.fallback_to_policy_gradient": "plain_gradient",
                }
            ),
            LOSS_ON_VERL,
        ),
    )
    clip_low: float = Field(
        0.2,
        gt=0.0,
        lt=1.0,
        description="lower bound of the probability ratio is 1 - clip_low; gspo: of a whole row's",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.policy_loss_fn_args.clip_range_low": "lower_bound"}), LOSS_ON_VERL
        ),
    )
    clip_high: float = Field(
        0.28,
        gt=0.0,
        description="upper bound of the probability ratio is 1 + clip_high; gspo: of a whole row's",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.policy_loss_fn_args.clip_range_high": "upper_bound"}), LOSS_ON_VERL
        ),
    )
    clip_dual: float | None = Field(
        None,
        gt=1.0,
        description="ppo_clip: the most that the ratio counts where the advantage is below 0; null: no bound",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.policy_loss_fn_args.clip_ratio_c": "dual_bound"}), LOSS_ON_VERL
        ),
    )
    importance_weight_cap_ratio: float = Field(
        4.0,
        ge=1.0,
        description="minirl: how many times wider than clip_low and clip_high the bounds are",
        json_schema_extra=fate(NO_MINIRL, LOSS_ON_VERL),
    )
    strict_in_bound: bool = Field(
        False,
        description="minirl: bounds as clip_low and clip_high say, not wider",
        json_schema_extra=fate(NO_MINIRL, LOSS_ON_VERL),
    )
    out_of_date_decay: NonNegativeFloat = Field(
        0.0,
        description="minirl: bounds are exp(-out_of_date_decay) times as wide for each update since a token's sampling",
        json_schema_extra=fate(NO_MINIRL, LOSS_ON_VERL),
    )
    opmd_tau: NonNegativeFloat = Field(
        1.0,
        description="opmd: the loss is divided by 1 + opmd_tau",
        json_schema_extra=fate(OnTrinity(to={"algorithm.policy_loss_fn_args.tau": "mirror_descent"}), LOSS_ON_VERL),
    )
    importance: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="reinforce and opmd: weigh tokens of an older policy by their probability ratio; beyond "
        "importance_cap it counts as that (truncate), or the token not at all (mask)",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity's losses that weigh no token by its ratio cannot do it otherwise either; take "
                "the key out, or use 'cispo', which cuts the ratio at 1 + astune.algorithm.clip_high"
            ),
            LOSS_ON_VERL,
        ),
    )
    importance_cap: float = Field(
        2.0,
        ge=1.0,
        description="most that importance weighs a token by",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="astune.algorithm.importance, whose cap it is, does not work on Trinity; take the key out"
            ),
            LOSS_ON_VERL,
        ),
    )
    loss_aggregation: Literal["episode_mean", "token_mean", "turn_mean", "agent_mean", "task_mean", "constant"] = Field(
        "episode_mean",
        description="what counts the same in the loss: each episode (GRPO), token (DAPO), turn, agent or task;"
        " constant: every token 1 / rollout.max_tokens (Dr. GRPO)",
        json_schema_extra=fate(
            OnTrinity(
                ours="our samples operator, in Trinity's experience pipeline: the weights are part of the advantages"
            )
        ),
    )
    agent_reward: Literal["own", "same", "difference", "leave_one_out"] = Field(
        "own",
        description="what an agent is paid: own: its own reward (`tuner.reward`), else the episode's; same: the "
        "episode's; difference: the first, less the mean of the trained agents of its episode; leave_one_out: the "
        "episode's, less what that is when it is played again with the agent's answers drawn anew (local alone)",
    )
    trained_agents: tuple[str, ...] = Field(
        ("*",),
        description="the agents whose turns are trained, by names or patterns, as 'solver_*'",
        json_schema_extra=fate(OnTrinity(ours=RUNNERS)),
    )
    credit: Literal["once", "per_branch", "mean_branch"] = Field(
        "once",
        description="tokens that branches of an episode share: trained in the first, in each, or in each by its part",
    )
    kl_beta: NonNegativeFloat = Field(
        0.0,
        description="how much the divergence (KL) from the model that the run began with counts; 0: not at all",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="on Trinity each token's advantage carries its weight in the loss, and Trinity's own "
                "KL term does not see it; take the key out"
            ),
            OnVerl(
                ours="our loss, in verl's training workers; above 0 each of them holds a share of the "
                "reference model too"
            ),
        ),
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3",
        description="how kl_beta's divergence is estimated from sampled tokens; in the loss k2 or k3",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="astune.algorithm.kl_beta, whose divergence it estimates, does not work on Trinity; "
                "take the key out"
            ),
            LOSS_ON_VERL,
        ),
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        description="loss: kl_beta times the divergence is added to the loss; reward: what a token and those after it "
        "diverge is taken off its advantage",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="astune.algorithm.kl_beta, which it is about, does not work on Trinity; take the key out"
            ),
            LOSS_ON_VERL,
        ),
    )
    entropy_bonus: NonNegativeFloat = Field(
        0.0,
        description="how much the entropy of the policy is rewarded, token by token; 0: not at all",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="on Trinity each token's advantage carries its weight in the loss, and Trinity's own "
                "entropy term does not see it; take the key out"
            ),
            LOSS_ON_VERL,
        ),
    )
    dpo_beta: PositiveFloat = Field(
        0.1,
        description="methods dpo and kto: how much a preference counts, against staying near the model it began with",
        json_schema_extra=fate(
            OnTrinity(to={"algorithm.policy_loss_fn_args.beta": "preference_beta"}, methods=("dpo",))
        ),
    )
    preference_loss: Literal["sigmoid", "ipo", "length_normalised", "simpo"] = Field(
        "sigmoid",
        description="method dpo: sigmoid (DPO), ipo, length_normalised (DPO over means, as in Tulu 3) or "
        "simpo, which has no reference",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity has the loss of DPO alone; take the key out", methods=("dpo",))
        ),
    )
    preference_margin: NonNegativeFloat = Field(
        0.0,
        description="preference_loss simpo: by how much the preferred answer is to be ahead (gamma)",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity has the loss of DPO alone; take the key out", methods=("dpo",))
        ),
    )
    teacher: Annotated[str | TeacherConfig | None, Located("folder")] = Field(
        None,
        description="method distill: a model with the same vocabulary, which is not trained: its folder or hub id, or "
        "{base_url, model, ...} of an API that gives log-probabilities of token ids (vLLM)",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity has no method 'distill'; take the key out"),
            OnVerl(
                ours="one in a folder is shared out over verl's training workers, where verl has its "
                "reference; one behind an API is asked by the training loop"
            ),
        ),
    )
    keep_per_task: PositiveInt | None = Field(
        None,
        description="method rft: most right attempts at a task that a step learns from; null: all",
        json_schema_extra=fate(OnTrinity(unsupported="Trinity has no method 'rft'; take the key out")),
    )
    kto_good_weight: PositiveFloat = Field(
        1.0,
        description="method kto: what a good answer counts",
        json_schema_extra=fate(OnTrinity(unsupported="Trinity has no method 'kto'; take the key out")),
    )
    kto_bad_weight: PositiveFloat = Field(
        1.0,
        description="method kto: what a bad answer counts",
        json_schema_extra=fate(OnTrinity(unsupported="Trinity has no method 'kto'; take the key out")),
    )

    @field_validator("method")
    @classmethod
    def _is_a_method_or_a_plugin(cls, value: str) -> str:
        name = builtin_name(value, METHODS)
        if name not in METHODS and ":" not in value and "->" not in value:
            *most, last = map(repr, METHODS)
            expected = {"expected": f"{', '.join(most)} or {last}"}
            raise PydanticCustomError("literal_error", "Input should be {expected}", expected)
        return name

    @field_validator("teacher", mode="before")
    @classmethod
    def _is_a_folder_or_an_api(cls, value: Any) -> Any:
        if value is None or isinstance(value, str | TeacherConfig):
            return value
        try:
            return TeacherConfig.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            said = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
            where = "".join(f"{part}: " for part in first["loc"])
            raise ValueError(f"a folder, a hub id, or an API as {{base_url, model, ...}}: {where}{said}") from error
