from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.sampling import LEAST_TEMPERATURE, LEAST_TOP_P, is_greedy
from astune.types import Sampling, Turn
from tests.rows import each_row


@each_row(
    "asked",
    [
        {"temperature": 0},
        {"temperature": 1e-300},
        {"temperature": 1e-40},
        {"temperature": 1e-6},
        {"temperature": 0.00999},
        {"top_p": 1e-50},
        {"top_p": LEAST_TOP_P},
        {"top_k": 1},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 1},
    ],
)
def test_what_leaves_nothing_to_chance_is_temperature_0(asked: dict[str, Any]) -> None:
    assert Sampling(8, **asked) == Sampling(8, temperature=0.0)
    assert Sampling(8, **asked).greedy


@given(st.floats(LEAST_TEMPERATURE, 100), st.floats(LEAST_TOP_P, 1, exclude_min=True), st.integers(2, 2**31 - 1))
def test_everything_else_is_kept_as_it_is(temperature: float, top_p: float, top_k: int) -> None:
    sampling = Sampling(8, temperature, top_p, top_k)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, top_p, top_k)
    assert not sampling.greedy and not is_greedy(temperature, top_p, top_k)


@each_row(
    ("name", "value"),
    [
        *(("temperature", value) for value in (math.nan, math.inf, -1e-9, 101, 10**400, True, "1", None)),
        *(("top_p", value) for value in (0, -0.1, 1.01, math.nan, math.inf, True, "1")),
        *(("top_k", value) for value in (-1, 1.5, 2**31, 10**400, True)),
        *(("max_tokens", value) for value in (0, -1, 1.5, True, math.nan, 2**31, None)),
        ("stop", ("\ud800",)),
        ("stop", (b"x",)),
    ],
)
def test_values_of_the_wrong_kind_or_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Sampling(**({"max_tokens": 8} | {name: value}))


@pytest.mark.parametrize(
    ("temperature", "logprob", "excluded"),
    [(1.0, -0.5, None), (0.0, -0.5, "greedy"), (1e-6, -0.5, "greedy"), (1.0, math.nan, "no_logprobs")],
)
def test_a_turn_that_cannot_be_trained_is_excluded_whoever_made_it(
    temperature: float, logprob: float, excluded: str | None
) -> None:
    turn = Turn("a", (1,), (2, 3), (-1.0, logprob), 0, "stop", temperature)
    assert (turn.excluded, turn.trainable) == (excluded, excluded is None)


def test_integers_too_long_to_be_written_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="temperature is an integer of 16610 bits; expected a number from 0"):
        Sampling(8, temperature=10**5000)
