"""Draw one token per row, reproducibly: one uniform number decides, whatever else is in the batch."""

from __future__ import annotations

import torch


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniform: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample by inverting the cumulative distribution.

    `logits` (n, vocabulary); the others (n,), `uniform` in [0, 1). Temperature 0 takes the most likely token.
    Returns token ids (n,) and their log-probabilities (n,) under softmax(logits / temperature) before top-p and
    top-k (under softmax(logits) for temperature 0): the distribution that training recomputes.
    """
    greedy = temperature == 0
    logprobs = torch.log_softmax(logits.float() / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
    kept = _nucleus(logprobs.exp(), top_p, top_k)
    cumulative = kept.cumsum(dim=-1, dtype=torch.float64)  # in float32 the unlikely tokens would vanish in the sum
    total = cumulative[:, -1]
    threshold = torch.minimum(uniform.double() * total, torch.nextafter(total, total.new_zeros(())))  # below the total
    drawn = torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(1)
    drawn = drawn.clamp(max=logits.shape[1] - 1)  # logits that are not numbers: the caller sees it in the logprob
    ids = torch.where(greedy, logits.argmax(dim=-1), drawn) if bool(greedy.any()) else drawn
    return ids, logprobs.gather(1, ids[:, None]).squeeze(1)


def _nucleus(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zero what lies outside the `top_k` most likely tokens (0: all) and outside the smallest set of most likely
    tokens whose mass reaches `top_p`. The likeliest stays, whatever float32 makes of `top_p`."""
    if bool((top_p >= 1).all()) and bool((top_k == 0).all()):
        return probs
    ordered, order = probs.sort(dim=-1, descending=True)
    rank = torch.arange(probs.shape[1], device=probs.device)
    most = torch.where(top_k == 0, probs.shape[1], top_k)[:, None]
    mass_before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    keep = (rank[None, :] < most) & ((mass_before < top_p[:, None]) | (top_p[:, None] >= 1) | (rank == 0)[None, :])
    return torch.zeros_like(probs).scatter(1, order, ordered * keep)
