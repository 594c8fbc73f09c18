"""A bandit of tokens: a table of logits stands in for the model, answers are a few tokens long, and some tokens are
worth a reward."""

from __future__ import annotations

from collections.abc import Callable

import torch

from astune.backbone.losses.entries import Entries

VOCABULARY, LENGTH, ATTEMPTS = 6, 3, 16

Objective = Callable[[Entries, torch.Tensor], torch.Tensor]
"""From entries, and log-probabilities of all tokens at each of them (e, VOCABULARY), to the loss (e,)."""


def reward_after(rounds: int, objective: Objective, *, updates: int = 2, rate: float = 0.3, seed: int = 0) -> float:
    """The expected reward of the policy after `rounds`, each of 16 answers and `updates` optimizer steps over all of
    them, the first on the policy that sampled and the others off it. The reward is the share of places whose token is
    right; advantages are the reward less the mean. Before learning it is 1 / 6."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.tensor([4, 0, 2])
    table = torch.zeros(LENGTH, VOCABULARY, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([table], lr=rate)
    row = torch.arange(ATTEMPTS).repeat_interleave(LENGTH)
    for _ in range(rounds):
        before = torch.log_softmax(table.detach(), -1)
        answers = torch.multinomial(before.exp(), ATTEMPTS, replacement=True, generator=generator).T
        sampled = before[torch.arange(LENGTH), answers].flatten()
        reward = (answers == right).double().mean(-1)
        advantage = (reward - reward.mean()).repeat_interleave(LENGTH)
        for update in range(updates):
            every = torch.log_softmax(table, -1)
            logprob = every[torch.arange(LENGTH), answers].flatten()
            entries = Entries(logprob, sampled, advantage, row, torch.full_like(row, update))
            loss = objective(entries, every[torch.arange(LENGTH)].repeat(ATTEMPTS, 1)).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return float(torch.softmax(table.detach(), -1)[torch.arange(LENGTH), right].mean())
