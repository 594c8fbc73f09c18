"""Draw one token per row, reproducibly: one uniform number decides, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def draw(
    logits: torch.Tensor,
    temperature: Sequence[float],
    top_p: Sequence[float],
    top_k: Sequence[int],
    uniform: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample by inverting the cumulative distribution.

    `logits` (n, vocabulary); the others n each, `uniform` in [0, 1). Temperature 0 takes the most likely token.
    Returns token ids (n,) and their log-probabilities (n,) under softmax(logits / temperature) before top-p and
    top-k (under softmax(logits) for temperature 0): the distribution that training recomputes.

    Nothing is read back from the logits' device: a GPU would have to finish all it was told before the next order.
    """
    given = torch.tensor([temperature, top_p, top_k, uniform], dtype=torch.float64).to(logits.device)
    greedy, heated = 0 in temperature, logits.float()
    if not {0, 1}.issuperset(temperature):
        heat = given[0].float()
        heated = heated / torch.where(heat == 0, 1.0, heat)[:, None]
    logprobs = torch.log_softmax(heated, dim=-1)
    kept = logprobs.exp()
    if min(top_p) < 1 or any(top_k):
        kept = _nucleus(kept, *given[1:3].float())
    cumulative = kept.cumsum(dim=-1, dtype=torch.float64)  # in float32 the unlikely tokens would vanish in the sum
    total = cumulative[:, -1]
    threshold = torch.minimum(given[3] * total, torch.nextafter(total, total.new_zeros(())))  # below the total
    drawn = torch.searchsorted(cumulative, threshold[:, None], right=True)
    ids = drawn.clamp_(max=logits.shape[1] - 1)  # logits that are not numbers: the caller sees it in the logprob
    if greedy:
        ids = torch.where((given[0] == 0)[:, None], logits.argmax(dim=-1, keepdim=True), ids)
    return ids.squeeze(1), logprobs.gather(1, ids).squeeze(1)


def _nucleus(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zero what lies outside the `top_k` most likely tokens (0: all) and outside the smallest set of most likely
    tokens whose mass reaches `top_p`. The likeliest stays, whatever float32 makes of `top_p`."""
    ordered, order = probs.sort(dim=-1, descending=True)
    rank = torch.arange(probs.shape[1], device=probs.device)
    most = torch.where(top_k == 0, probs.shape[1], top_k)[:, None]
    mass_before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    keep = (rank[None, :] < most) & ((mass_before < top_p[:, None]) | (top_p[:, None] >= 1) | (rank == 0)[None, :])
    return torch.zeros_like(probs).scatter(1, order, ordered * keep)
