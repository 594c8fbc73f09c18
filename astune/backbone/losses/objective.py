"""The objective that an update minimises over its trained tokens, and the figures that come with it.

Besides `Entries` each takes the `weight` (e,) of every entry in the loss, and the `entropy` (e,) of what it was drawn
from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from astune.backbone.losses.entries import Entries, bound, to_go
from astune.backbone.losses.policy import LOSSES
from astune.config.schema import AlgorithmConfig


def k1(difference: torch.Tensor) -> torch.Tensor:
    """d. Its mean over sampled tokens is KL(pi | reference); each may be below 0.

    For the reward only: there it stands for itself. As a loss its gradient is that of log pi, whose mean is 0, so that
    nothing would pull the policy back.
    """
    return difference


def k2(difference: torch.Tensor) -> torch.Tensor:
    """d^2 / 2. A little off as a value; as a loss its gradient d * grad log pi is that of KL(pi | reference)."""
    return difference.square() / 2


def k3(difference: torch.Tensor) -> torch.Tensor:
    """exp(-d) - 1 + d. Its mean is KL(pi | reference) and none is below 0; as a loss its mean gradient is that of
    KL(reference | pi)."""
    return torch.exp(bound(-difference)) - 1 + difference


KL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Schulman, Approximating KL Divergence (2020), joschu.net/blog/kl-approx.html. Values and gradients are right for
tokens of the policy that is trained, and nearly so while it stays near the one that sampled."""


@dataclass(frozen=True)
class Objective:
    """`loss` (e,) is the share of each entry in the loss of the update, weights included: the update minimises its
    sum. `figures` are these entries' shares of the update's figures, which are sums. `logprob` (e,) is that of each
    trained token."""

    loss: torch.Tensor
    figures: Mapping[str, torch.Tensor]
    logprob: torch.Tensor


def policy_objective(
    entries: Entries,
    weight: torch.Tensor,
    entropy: torch.Tensor,
    reference: torch.Tensor | None,
    config: AlgorithmConfig,
) -> Objective:
    """The loss `astune.algorithm.loss` over sampled tokens, and the penalty that holds the policy near `reference`
    (e,), the log-probabilities under the weights that the run began with."""
    shares: dict[str, torch.Tensor] = {}
    if reference is not None:
        divergence = entries.logprob - reference
        entries = with_kl_in_reward(entries, divergence, config)
        shares["kl/reference"] = k3(divergence.detach())
    policy = LOSSES[config.loss](entries, config)
    loss = policy.loss
    if reference is not None and config.kl_in == "loss":
        loss = loss + config.kl_beta * KL[config.kl_estimator](divergence)
    if config.entropy_bonus:
        loss = loss - config.entropy_bonus * entropy
    with torch.no_grad():
        difference = bound(entries.logprob - entries.sampled)
        shares |= {"entropy": entropy, "kl/sampler": difference.exp() - 1 - difference, **policy.shares}
        figures = {name: (share * weight).sum() for name, share in shares.items()}
    return Objective(loss * weight, figures, entries.logprob.detach())


def with_kl_in_reward(entries: Entries, divergence: torch.Tensor, config: AlgorithmConfig) -> Entries:
    """Subtract from the advantage of a token its divergence and that of all later tokens in its row (REINFORCE++, arXiv
    2501.03262)."""
    if config.kl_in == "loss":
        return entries
    penalty = to_go(KL[config.kl_estimator](divergence), entries.row)
    return replace(entries, advantage=entries.advantage - config.kl_beta * penalty)


def distillation_objective(
    entries: Entries, weight: torch.Tensor, entropy: torch.Tensor, teacher: torch.Tensor, config: AlgorithmConfig
) -> Objective:
    """The loss `astune.algorithm.loss` where the advantage of each token is how much likelier the teacher finds it than
    the policy in training: on average, minus the reverse divergence (GKD, arXiv 2306.13649, on the student's own
    tokens). `teacher` (e,) are log-probabilities under the teacher.

    Invariant: averaged over what the policy may say, the gradient is that of KL(policy, teacher) of the next token. A
    token answers for itself alone, as with a discount of 0. The policy that sampled would be the wrong one to compare
    with: a policy that has become its teacher has nothing to learn, however old the tokens are.
    """
    ahead = bound(teacher - entries.logprob.detach())
    policy = LOSSES[config.loss](replace(entries, advantage=ahead), config)
    with torch.no_grad():
        difference = bound(entries.logprob - entries.sampled)
        shares = {"entropy": entropy, "kl/sampler": difference.exp() - 1 - difference, **policy.shares}
        shares["kl/teacher"] = k3(bound(entries.logprob - teacher))
        figures = {name: (share * weight).sum() for name, share in shares.items()}
    return Objective(policy.loss * weight, figures, entries.logprob.detach())


def likelihood_objective(entries: Entries, weight: torch.Tensor, entropy: torch.Tensor) -> Objective:
    """-logprob A of tokens that nobody sampled: with advantages of 1 the negative log-likelihood of examples."""
    loss = -entries.logprob * entries.advantage * weight
    with torch.no_grad():
        figures = {"entropy": (entropy * weight).sum()}
    return Objective(loss, figures, entries.logprob.detach())
