from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.local.sampling.draw import draw


def drawn(
    logits: torch.Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    n = len(uniform)
    return draw(logits.expand(n, -1), [temperature] * n, [top_p] * n, [top_k] * n, uniform.tolist())


def test_frequencies_follow_the_softmax_at_the_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    uniform = (torch.arange(100_000) + 0.5).double() / 100_000
    ids, logprobs = drawn(logits, temperature=0.5, uniform=uniform)
    expected = torch.softmax(logits[0] / 0.5, -1)
    assert torch.allclose(torch.bincount(ids, minlength=4) / 100_000, expected, atol=1e-4)
    assert torch.allclose(logprobs.exp(), expected[ids], atol=1e-6)


def test_temperature_zero_takes_the_most_likely_and_reports_its_plain_logprob() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    ids, logprobs = drawn(logits, temperature=0.0, uniform=torch.tensor([0.0, 0.99]).double())
    assert ids.tolist() == [1, 1]
    assert torch.allclose(logprobs, torch.log_softmax(logits[0], -1)[1].expand(2))


@given(st.integers(1, 6), st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 2**31))
def test_top_k_never_leaves_the_k_most_likely(k: int, uniform: float, seed: int) -> None:
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed))
    ids, _ = drawn(logits, top_k=k, uniform=torch.tensor([uniform]).double())
    assert int(ids) in logits[0].topk(k).indices.tolist()


@given(st.floats(0.01, 0.99), st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 2**31))
def test_top_p_never_leaves_the_smallest_set_that_reaches_p(p: float, uniform: float, seed: int) -> None:
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed))
    ids, _ = drawn(logits, top_p=p, uniform=torch.tensor([uniform]).double())
    probs = torch.softmax(logits[0].double(), -1)
    more_likely = probs[probs > probs[int(ids)]].sum()
    assert more_likely < p + 1e-6


@given(st.floats(1e-300, 1.0), st.floats(0.0, 1.0, exclude_max=True))
def test_however_small_top_p_is_the_likeliest_token_is_kept(p: float, uniform: float) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, -1.0]])
    ids, _ = drawn(logits, top_p=p, uniform=torch.tensor([uniform]).double())
    assert int(ids) == 1 or p > 0.8


def test_of_rows_that_are_equal_one_token_is_kept_and_never_the_last_for_want_of_any() -> None:
    ids, _ = drawn(torch.zeros(1, 6), top_p=1e-50, uniform=torch.tensor([0.0, 0.999]).double())
    assert len(set(ids.tolist())) == 1 and int(ids[0]) < 5
