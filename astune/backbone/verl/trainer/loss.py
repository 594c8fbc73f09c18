"""ASTune's losses as the loss function of verl's training workers.

verl has a registry of policy losses too. What it hands them is padded, and it wants a mean back; the function that it
calls around them (`set_loss_fn`) sees the rows as they are, so every term and every figure of ours is computed by the
same code as on the backbone `local`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict

from astune.backbone.losses.critic import value_loss
from astune.backbone.losses.entries import Entries
from astune.backbone.losses.objective import (
    Objective,
    distillation_objective,
    likelihood_objective,
    policy_objective,
)
from astune.config.algorithm import AlgorithmConfig, CriticConfig
from astune.config.rules.method import rules_of

FIGURE = "astune/"
"""Begins the names of our figures, as verl adds some of its own."""
BESIDE = "beside"
"""The column of the log-probabilities under the model beside the one in training: the reference, or the teacher."""
RETURNS, OLD_VALUES = "returns", "old_values"
"""The columns that the critic learns from."""


def astune_loss(
    config: AlgorithmConfig, model_output: Mapping[str, torch.Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a micro-batch made by `rows.batch_of`, and its shares of the update's figures, to be summed.

    verl takes the mean of all ranks' gradients, so the loss is multiplied by their number: the gradient is then that of
    the sum over all samples of the update.
    """
    mask = data["loss_mask"].values().bool()
    before = mask.roll(-1)  # the first token of a row is never trained, so this stays within rows

    def column(name: str) -> torch.Tensor:
        values: torch.Tensor = data[name].values()
        return values[mask]

    lengths = data["input_ids"].offsets().diff()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)[mask]
    logprob, entropy = (model_output[name].values()[before] for name in ("log_probs", "entropy"))
    if not config.entropy_bonus:
        entropy = entropy.detach()
    entries = Entries(logprob, column("sampled"), column("advantage"), row, column("age"))
    beside = column(BESIDE) if BESIDE in data else None
    parts = objectives(config, entries, column("weight"), entropy, beside, data["imitated"][row])
    loss = torch.stack([part.loss.sum() for part in parts]).sum()
    figures: dict[str, float] = {}
    for part in parts:
        for name, value in part.figures.items():
            figures[FIGURE + name] = figures.get(FIGURE + name, 0.0) + float(value)
    return loss * data["dp_size"], figures


def objectives(
    config: AlgorithmConfig,
    entries: Entries,
    weight: torch.Tensor,
    entropy: torch.Tensor,
    beside: torch.Tensor | None,
    imitated: torch.Tensor,
) -> list[Objective]:
    """The objectives of the entries that are imitated (e,), and of the others. A micro-batch may have both, or neither.
    `beside` (e,) are the log-probabilities under the teacher, or the reference."""
    kind = rules_of(config).loss
    if kind == "likelihood":
        return [likelihood_objective(entries, weight, entropy)]
    played = _choose(entries, ~imitated)
    held = None if beside is None else beside[~imitated]
    if kind == "teacher":
        assert held is not None, "the learner asks the teacher first"
        parts = [distillation_objective(played, weight[~imitated], entropy[~imitated], held, config)]
    else:
        parts = [policy_objective(played, weight[~imitated], entropy[~imitated], held, config)]
    if bool(imitated.any()):
        parts.append(likelihood_objective(_choose(entries, imitated), weight[imitated], entropy[imitated]))
    return parts


def _choose(entries: Entries, chosen: torch.Tensor) -> Entries:
    return replace(
        entries,
        logprob=entries.logprob[chosen],
        sampled=entries.sampled[chosen],
        advantage=entries.advantage[chosen],
        row=entries.row[chosen],
        age=entries.age[chosen],
    )


def critic_loss(
    config: CriticConfig, model_output: Mapping[str, torch.Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """The same for the critic as `astune_loss` for the policy."""
    mask = data["loss_mask"].values().bool()
    value = model_output["values"].values()[mask.roll(-1)].float()
    returns, old, weight = (data[name].values()[mask] for name in (RETURNS, OLD_VALUES, "weight"))
    loss = (value_loss(value, returns, old, config.value_clip) * weight).sum()
    return loss * data["dp_size"], {f"{FIGURE}critic/loss": float(loss.detach())}
