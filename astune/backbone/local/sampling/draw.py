"""Draw one token per row, reproducibly: one uniform number decides, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

BLOCK = 512
"""Tokens that are summed up together where a vocabulary is wide."""
WIDE = 16384
"""Tokens from which on one is."""


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
    highest = heated.amax(dim=-1, keepdim=True)
    kept = (heated - highest).exp_()
    total = kept.sum(dim=-1, keepdim=True)
    if min(top_p) < 1 or any(top_k):
        kept = _keep_nucleus(kept / total, *given[1:3].float())
    ids = _invert(kept, given[3])
    if greedy:
        ids = torch.where((given[0] == 0)[:, None], heated.argmax(dim=-1, keepdim=True), ids)
    # what are not numbers in the logits is none here either: the caller sees it
    return ids.squeeze(1), (heated.gather(1, ids) - highest - total.log()).squeeze(1)


def _invert(kept: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Find the columns (n, 1) at which the cumulative sum of `kept` (n, m), none negative, passes `uniform` (n,) of its
    total. A wide row is summed up over blocks, and then within the block that was drawn: the others are read once and
    not written."""
    size = kept.shape[1]
    if size < WIDE:
        return _find_column(kept.cumsum(dim=-1, dtype=torch.float64), uniform)[0]
    full = size - size % BLOCK
    blocks = [kept[:, :full].view(len(kept), -1, BLOCK).sum(dim=-1)]
    if full < size:
        blocks.append(kept[:, full:].sum(dim=-1, keepdim=True))
    weights = torch.cat(blocks, dim=1)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    block, threshold = _find_column(cumulative, uniform)
    weight = weights.gather(1, block)
    into = (threshold - (cumulative.gather(1, block) - weight)) / weight
    columns = block * BLOCK + torch.arange(BLOCK, device=kept.device)
    inside = kept.gather(1, columns.clamp(max=size - 1)) * (columns < size)
    ids, _ = _find_column(inside.cumsum(dim=-1, dtype=torch.float64), into.clamp_(0).squeeze(1))
    return (block * BLOCK + ids).clamp_(max=size - 1)


def _find_column(cumulative: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the first column of `cumulative` (n, m) above `uniform` (n,) of the last: (n, 1), and what it is above (n,
    1). In float64, as in float32 the unlikely tokens would vanish in the sum."""
    total = cumulative[:, -1]
    threshold = torch.minimum(uniform * total, torch.nextafter(total, total.new_zeros(())))[:, None]  # below the total
    return torch.searchsorted(cumulative, threshold, right=True).clamp_(max=cumulative.shape[1] - 1), threshold


def _keep_nucleus(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zero what lies outside the `top_k` most likely tokens (0: all) and outside the smallest set of most likely
    tokens whose mass reaches `top_p`. The likeliest stays, whatever float32 makes of `top_p`."""
    ordered, order = probs.sort(dim=-1, descending=True)
    rank = torch.arange(probs.shape[1], device=probs.device)
    most = torch.where(top_k == 0, probs.shape[1], top_k)[:, None]
    mass_before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    keep = (rank[None, :] < most) & ((mass_before < top_p[:, None]) | (top_p[:, None] >= 1) | (rank == 0)[None, :])
    return torch.zeros_like(probs).scatter(1, order, ordered * keep)
