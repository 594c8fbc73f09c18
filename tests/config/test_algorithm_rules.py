"""What an algorithm does not use is an error that says so."""

from __future__ import annotations

from typing import Any

import pytest

from astune.config.algorithm import AlgorithmConfig
from astune.config.algorithm_rules import algorithm_contradictions


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        ({"kl_in": "reward"}, "kl_in", "kl_beta is 0"),
        ({"kl_estimator": "k2"}, "kl_estimator", "kl_beta is 0"),
        ({"kl_beta": 0.1, "kl_estimator": "k1"}, "kl_estimator", "0 on average"),
        ({"kl_beta": 0.1, "method": "sft"}, "kl_beta", "only method 'rl'"),
    ],
)
def test_what_an_algorithm_does_not_use_is_an_error_with_the_reason(
    values: dict[str, Any], key: str, message: str
) -> None:
    ((found, said),) = algorithm_contradictions(AlgorithmConfig(**values))
    assert found == f"astune.algorithm.{key}" and message in said


@pytest.mark.parametrize(
    "values", [{}, {"kl_beta": 0.1}, {"kl_beta": 0.1, "kl_estimator": "k1", "kl_in": "reward"}, {"method": "sft"}]
)
def test_what_works_together_is_no_error(values: dict[str, Any]) -> None:
    assert not list(algorithm_contradictions(AlgorithmConfig(**values)))
