"""What an update minimises over a micro-batch, and the figures that come with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from astune.backbone.local.learning.batch import MicroBatch
from astune.backbone.local.learning.forward import Forward
from astune.backbone.losses.entries import Entries, bounded, to_go
from astune.backbone.losses.policy import LOSSES
from astune.backbone.losses.regularisers import KL, k3
from astune.config.schema import AlgorithmConfig


@dataclass(frozen=True)
class Objective:
    """`loss` (e,) is the share of each entry in the loss of the update, weights included: the update minimises its
    sum. `figures` are this micro-batch's shares of the update's figures, which are sums. `logprob` (e,) is that of each
    trained token."""

    loss: torch.Tensor
    figures: Mapping[str, torch.Tensor]
    logprob: torch.Tensor


def policy_objective(
    batch: MicroBatch,
    forward: Forward,
    reference: torch.Tensor | None,
    config: AlgorithmConfig,
    policy_version: int,
) -> Objective:
    """The loss `astune.algorithm.loss` over sampled tokens, and what holds the policy near `reference` (e,), the
    log-probabilities under the weights that the run began with. `policy_version` is that of the weights in training:
    the sampler's, and one more for each update since it got them."""
    entries = entries_of(batch, forward.logprob, policy_version)
    shares: dict[str, torch.Tensor] = {}
    if reference is not None:
        divergence = forward.logprob - reference
        entries = with_kl_in_reward(entries, divergence, config)
        shares["kl/reference"] = k3(divergence.detach())
    policy = LOSSES[config.loss](entries, config)
    loss = policy.loss
    if reference is not None and config.kl_in == "loss":
        loss = loss + config.kl_beta * KL[config.kl_estimator](divergence)
    entropy = forward.entropy(batch)
    if config.entropy_bonus:
        loss = loss - config.entropy_bonus * entropy
    with torch.no_grad():
        difference = bounded(forward.logprob - batch.sampled)
        shares |= {"entropy": entropy, "kl/sampler": difference.exp() - 1 - difference, **policy.shares}
        figures = {name: (share * batch.weight).sum() for name, share in shares.items()}
    return Objective(loss * batch.weight, figures, forward.logprob.detach())


def with_kl_in_reward(entries: Entries, divergence: torch.Tensor, config: AlgorithmConfig) -> Entries:
    """Take what a token and those after it in its row diverge off its advantage (REINFORCE++, arXiv 2501.03262)."""
    if config.kl_in == "loss":
        return entries
    penalty = to_go(KL[config.kl_estimator](divergence), entries.row)
    return replace(entries, advantage=entries.advantage - config.kl_beta * penalty)


def distillation_objective(
    batch: MicroBatch, forward: Forward, teacher: torch.Tensor, config: AlgorithmConfig, policy_version: int
) -> Objective:
    """The loss `astune.algorithm.loss` where the advantage of each token is how much likelier the teacher finds it than
    the policy in training: on average, minus the reverse divergence (GKD, arXiv 2306.13649, on the student's own
    tokens). `teacher` (e,) are log-probabilities under the teacher.

    Invariant: averaged over what the policy may say, the gradient is that of KL(policy, teacher) of the next token. A
    token answers for itself alone, as with a discount of 0. The policy that sampled would be the wrong one to compare
    with: a policy that has become its teacher has nothing to learn, however old the tokens are.
    """
    ahead = bounded(teacher - forward.logprob.detach())
    entries = replace(entries_of(batch, forward.logprob, policy_version), advantage=ahead)
    policy = LOSSES[config.loss](entries, config)
    with torch.no_grad():
        difference = bounded(forward.logprob - batch.sampled)
        shares = {"entropy": forward.entropy(batch), "kl/sampler": difference.exp() - 1 - difference, **policy.shares}
        shares["kl/teacher"] = k3(bounded(forward.logprob - teacher))
        figures = {name: (share * batch.weight).sum() for name, share in shares.items()}
    return Objective(policy.loss * batch.weight, figures, forward.logprob.detach())


def likelihood_objective(batch: MicroBatch, forward: Forward) -> Objective:
    """-logprob A of tokens that nobody sampled: with advantages of 1 the negative log-likelihood of examples."""
    loss = -forward.logprob * batch.advantage * batch.weight
    with torch.no_grad():
        figures = {"entropy": (forward.entropy(batch) * batch.weight).sum()}
    return Objective(loss, figures, forward.logprob.detach())


def entries_of(batch: MicroBatch, logprob: torch.Tensor, policy_version: int) -> Entries:
    """The loss entries of a micro-batch, under the weights that gave `logprob` (e,)."""
    return Entries(logprob, batch.sampled, batch.advantage, batch.row, policy_version - batch.version)
