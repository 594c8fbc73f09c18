"""Policy-gradient losses, one plain formula per function.

Each gives the loss per entry (e,), to be weighted and summed, and the shares of entries that it treats otherwise than
the rest. Symbols: r = exp(logprob - sampled), A the advantage; sg(x) is x without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from astune.backbone.losses.entries import Entries, bound, row_mean
from astune.config.schema import AlgorithmConfig


@dataclass(frozen=True)
class TokenLoss:
    """`loss` (e,) of each entry. `shares` are figures by name, each the entries (e,) that it counts."""

    loss: torch.Tensor
    shares: Mapping[str, torch.Tensor] = field(default_factory=dict)


PolicyLoss = Callable[[Entries, AlgorithmConfig], TokenLoss]


def ppo_clip(entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    PPO (arXiv 1707.06347) with the wider upper bound of DAPO (arXiv 2503.14476). With clip_dual c, where A < 0: at most
    -c A, so that a token which became much likelier than when it was sampled does not count without end (dual clip,
    arXiv 1912.09729).
    """
    ratio = torch.exp(bound(entries.logprob - entries.sampled))
    loss, outside = _clip(ratio, entries.advantage, config)
    shares = {"clip_fraction": outside}
    if config.clip_dual is not None:
        most = -config.clip_dual * entries.advantage
        shares["dual_clip_fraction"] = (entries.advantage < 0) & (loss.detach() > most)
        loss = torch.where(entries.advantage < 0, torch.minimum(loss, most), loss)
    return TokenLoss(loss, shares)


def gspo(entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) with s the ratio of a whole row to the power of 1 / its length,
    that is exp(mean of log r over the row).

    GSPO (arXiv 2507.18071), in the form that takes an advantage for each token (GSPO-token): the value is that of s,
    the gradient that of sg(s) exp(logprob - sg(logprob)). Where a row has one advantage and every token of it one
    weight, it is the gradient of the row's own s. A row is a timeline.
    """
    of_row = row_mean(bound(entries.logprob.detach() - entries.sampled), entries.row).exp()
    ratio = of_row * torch.exp(entries.logprob - entries.logprob.detach())
    loss, outside = _clip(ratio, entries.advantage, config)
    return TokenLoss(loss, {"clip_fraction": outside})


def _clip(ratio: torch.Tensor, advantage: torch.Tensor, config: AlgorithmConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped surrogate, and the entries whose ratio is out of bounds."""
    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    clipped = ratio.clamp(low, high)
    kept = ratio.detach()
    return -torch.minimum(ratio * advantage, clipped * advantage), (kept < low) | (kept > high)


def cispo(entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """-sg(min(r, 1 + clip_high)) A logprob: the weight is cut, the token never (CISPO of MiniMax-M1, arXiv 2506.13585).

    As in the paper's experiments there is no lower bound.
    """
    ratio = _compute_ratio(entries)
    weight = ratio.clamp(max=1.0 + config.clip_high)
    return TokenLoss(-weight * entries.advantage * entries.logprob, {"clip_fraction": ratio > 1.0 + config.clip_high})


def minirl(entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """-sg(r) A logprob, and 0 where r > upper and A > 0, or r < lower and A < 0 (MiniRL, arXiv 2512.01374).

    The bounds are those of AgentRL, with C the importance_weight_cap_ratio and d a factor:
    upper = 1 + clip_high C d, lower = 1 - clip_low C d. d is 1 / C with strict_in_bound, else
    exp(-out_of_date_decay * age), which is 1 where out_of_date_decay is 0. AgentRL's own clip_high is its
    epsilon + epsilon_higher.
    """
    cap = config.importance_weight_cap_ratio
    wide = torch.exp(-config.out_of_date_decay * entries.age.to(entries.logprob.dtype)) * cap
    if config.strict_in_bound:
        wide = torch.ones_like(entries.logprob)
    ratio = _compute_ratio(entries)
    too_likely = (ratio > 1.0 + config.clip_high * wide) & (entries.advantage > 0)
    too_unlikely = (ratio < 1.0 - config.clip_low * wide) & (entries.advantage < 0)
    dropped = too_likely | too_unlikely
    loss = -ratio * entries.advantage * entries.logprob
    return TokenLoss(loss.masked_fill(dropped, 0.0), {"dropped_fraction": dropped})


def reinforce(entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """-logprob A (Williams 1992): without `importance`, for updates on exactly the policy that sampled."""
    return _weigh_importance(-entries.logprob * entries.advantage, entries, config)


def opmd(entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """-logprob A / (1 + opmd_tau): online policy mirror descent as Trinity-RFT has it (arXiv 2505.17826, appendix A;
    arXiv 2509.24203, section 2.2), where A is the reward less the mean of its group.

    It makes no assumption about the policy that sampled. AdamW takes no notice of the divisor, which counts only beside
    other terms, such as kl_beta.
    """
    return _weigh_importance(-entries.logprob * entries.advantage / (1.0 + config.opmd_tau), entries, config)


def _weigh_importance(loss: torch.Tensor, entries: Entries, config: AlgorithmConfig) -> TokenLoss:
    """Times sg(r), for tokens of an older policy. Beyond importance_cap it counts as the cap (`truncate`: Ionides,
    Truncated Importance Sampling, 2008), or the token is left out (`mask`)."""
    if config.importance == "none":
        return TokenLoss(loss)
    ratio = _compute_ratio(entries)
    beyond = ratio > config.importance_cap
    if config.importance == "truncate":
        return TokenLoss(loss * ratio.clamp(max=config.importance_cap), {"truncated_fraction": beyond})
    return TokenLoss((loss * ratio).masked_fill(beyond, 0.0), {"dropped_fraction": beyond})


def _compute_ratio(entries: Entries) -> torch.Tensor:
    """r, without gradient."""
    return torch.exp(bound(entries.logprob.detach() - entries.sampled))


LOSSES: Mapping[str, PolicyLoss] = {
    function.__name__: function for function in (ppo_clip, gspo, cispo, minirl, opmd, reinforce)
}
"""Losses by the name that they have in `astune.algorithm.loss`."""
