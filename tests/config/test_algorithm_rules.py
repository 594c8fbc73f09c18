"""What an algorithm does not use is an error that says so."""

from __future__ import annotations

from typing import Any

from astune.config.algorithm import AlgorithmConfig
from astune.config.rules.algorithm import algorithm_contradictions
from tests.rows import each_row


@each_row(
    ("values", "key", "message"),
    [
        ({"kl_in": "reward"}, "kl_in", "kl_beta is 0"),
        ({"kl_estimator": "k2"}, "kl_estimator", "kl_beta is 0"),
        ({"kl_beta": 0.1, "kl_estimator": "k1"}, "kl_estimator", "0 on average"),
        ({"kl_beta": 0.1, "method": "sft"}, "kl_beta", "only method 'rl'"),
        ({"entropy_bonus": 0.1, "method": "dpo"}, "entropy_bonus", "only method 'rl'"),
        ({"loss": "reinforce", "clip_low": 0.1}, "clip_low", "only ppo_clip, gspo, minirl have it"),
        ({"loss": "cispo", "clip_low": 0.1}, "clip_low", "the loss 'cispo' does not use it"),
        ({"loss": "opmd", "clip_high": 0.1}, "clip_high", "its default is 0.28"),
        ({"loss": "gspo", "clip_dual": 3.0}, "clip_dual", "only ppo_clip has it"),
        ({"importance": "truncate"}, "importance", "the others weigh each token by its ratio already"),
        ({"loss": "reinforce", "importance_cap": 3.0}, "importance_cap", "importance is 'none'"),
        ({"opmd_tau": 2.0}, "opmd_tau", "only opmd has it"),
        ({"strict_in_bound": True}, "strict_in_bound", "only minirl has it"),
        ({"loss": "minirl", "strict_in_bound": True, "out_of_date_decay": 0.1}, "out_of_date_decay", "never wider"),
    ],
)
def test_what_an_algorithm_does_not_use_is_an_error_with_the_reason(
    values: dict[str, Any], key: str, message: str
) -> None:
    ((found, said),) = algorithm_contradictions(AlgorithmConfig(**values))
    assert found == f"astune.algorithm.{key}" and message in said


@each_row(
    "values",
    [
        {},
        {"kl_beta": 0.1},
        {"kl_beta": 0.1, "kl_estimator": "k1", "kl_in": "reward"},
        {"method": "sft"},
        {"loss": "reinforce", "importance": "mask", "importance_cap": 3.0},
    ],
)
def test_what_works_together_is_no_error(values: dict[str, Any]) -> None:
    assert not list(algorithm_contradictions(AlgorithmConfig(**values)))
