from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.local.sampling.draw import BLOCK, WIDE, draw


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


@given(
    st.sampled_from([7, BLOCK, WIDE - 1, WIDE, WIDE + 1, WIDE + BLOCK, 40_000]),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.1, 1.0, 5.0]),
)
def test_a_wide_vocabulary_is_drawn_from_as_the_definition_has_it(size: int, seed: int, spread: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(3, size, generator=chance)
    logits[:, torch.randperm(size, generator=chance)[: size // 2]] = -200.0  # of no mass in float32
    uniform = torch.tensor([0.0, torch.rand((), generator=chance).item(), 1 - 2**-53]).double()
    ids, logprobs = draw(logits, [1.0] * 3, [1.0] * 3, [0] * 3, uniform.tolist())
    exact = torch.log_softmax(logits.double(), -1)
    below = exact.exp().cumsum(-1).gather(1, ids[:, None]).squeeze(1)
    mass = exact.gather(1, ids[:, None]).squeeze(1)
    assert (below - mass.exp() - 1e-6 < uniform).all() and (uniform < below + 1e-6).all()
    assert (logits.gather(1, ids[:, None]) > -200).all()
    torch.testing.assert_close(logprobs.double(), mass, atol=2e-6, rtol=2e-7)


def test_what_is_drawn_does_not_depend_on_the_rows_beside_it() -> None:
    for size in (100, WIDE + 77):
        logits = 3 * torch.randn(20, size, generator=torch.Generator().manual_seed(size))
        uniform = [0.05 * row for row in range(20)]
        ids, logprobs = draw(logits, [0.7] * 20, [1.0] * 20, [0] * 20, uniform)
        alone = [draw(logits[i : i + 1], [0.7], [1.0], [0], uniform[i : i + 1]) for i in range(20)]
        assert torch.equal(ids, torch.cat([token for token, _ in alone]))
        assert torch.equal(logprobs, torch.cat([logprob for _, logprob in alone]))


def test_within_a_block_every_token_has_its_share() -> None:
    logits = torch.full((1, WIDE), -30.0)
    logits[0, 700:704] = torch.tensor([0.0, 1.0, 2.0, 1.0])
    uniform = (torch.arange(2000) + 0.5).double() / 2000
    ids, _ = drawn(logits, uniform=uniform)
    shares = torch.bincount(ids - 700, minlength=4) / 2000
    assert torch.allclose(shares, torch.softmax(logits[0, 700:704], -1), atol=1e-3)


def test_logits_that_are_not_numbers_are_seen_in_the_log_probability() -> None:
    for size in (100, WIDE):
        for spoilt in (float("nan"), float("inf")):
            logits = torch.zeros(2, size)
            logits[0, size // 2] = spoilt
            _, logprobs = draw(logits, [1.0, 0.0], [1.0, 1.0], [0, 0], [0.5, 0.5])
            assert not logprobs[0].isfinite() and logprobs[1].isfinite()
