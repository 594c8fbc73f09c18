"""The terms of the objective that need the whole model: the entropy bonus and the divergence from a reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from astune.backbone.local.learning.batch import MicroBatch, micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.model.attention import ATTENTION
from astune.backbone.losses.objective import distillation_objective, policy_objective
from astune.config.schema import AlgorithmConfig
from astune.types import Sample, Span
from tests.backbone.local.test_prefix_tree import branching_samples
from tests.rows import each_row

NOTHING = {"loss": "opmd", "opmd_tau": 1e12}
"""A policy loss that is next to nothing, so that the term beside it is all that is seen."""


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def of_trees(model: Any, samples: list[Sample], config: AlgorithmConfig, reference: float | None) -> torch.Tensor:
    model.set_attn_implementation(ATTENTION)
    model.zero_grad()
    for batch in micro_batches(samples, 150, torch.device("cpu")):
        forward = predict(model, batch, entropy_gradient=config.entropy_bonus > 0)
        given = None if reference is None else torch.full_like(forward.logprob, reference)
        entries, entropy = batch.entries(forward.logprob, 0), forward.entropy(batch)
        policy_objective(entries, batch.weight, entropy, given, config).loss.sum().backward()  # type: ignore[no-untyped-call]
    return gradient(model)


def logprobs(model: Any, sample: Sample, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all tokens at each place of a span, and of those that were sampled."""
    ids = torch.tensor([list(sample.timeline.token_ids)])
    logits = model(input_ids=ids, use_cache=False).logits[0, span.start - 1 : span.stop - 1].double()
    every = torch.log_softmax(logits / span.temperature, -1)
    return every, every.gather(1, ids[0, span.start : span.stop, None])[:, 0]


@pytest.mark.parametrize("term", ["entropy", "k2", "k3", "k1 in the reward"])
def test_the_gradient_of_a_term_is_that_of_its_formula_row_by_row(model: Any, term: str) -> None:
    model.double()
    values = {"entropy_bonus": 0.5} if term == "entropy" else {"kl_beta": 0.5, "kl_estimator": term[:2]}
    if term == "k1 in the reward":
        values["kl_in"] = "reward"
        values |= {"loss": "reinforce"}
    samples, reference = branching_samples(), -2.0
    config = AlgorithmConfig.model_validate(NOTHING | values if values.get("loss") is None else values)
    found = of_trees(model, samples, config, None if term == "entropy" else reference)

    model.set_attn_implementation("sdpa")
    model.zero_grad()
    for sample in samples:
        spans = list(zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True))
        seen = [(*logprobs(model, sample, span), advantage, weight) for span, advantage, weight in spans]
        own = torch.cat([sampled for _, sampled, _, _ in seen])
        left = (own.detach() + 2).flip(0).cumsum(0).flip(0).split([len(span) for span, _, _ in spans])
        for (every, sampled, advantage, weight), ahead in zip(seen, left, strict=True):
            ratio = sampled - reference
            each = {
                "entropy": (every.exp() * every).sum(-1),
                "k2": ratio**2 / 2,
                "k3": torch.exp(-ratio) - 1 + ratio,
                "k1 in the reward": 2 * -sampled * (advantage - 0.5 * ahead),
            }[term]
            (0.5 * each * weight).sum().backward(retain_graph=True)
    expected = gradient(model)
    assert expected.norm() > 1e-3
    assert (found - expected).norm() / expected.norm() < 1e-5


def every_token(sampler: torch.Tensor) -> MicroBatch:
    """A place at which each token of a small vocabulary was sampled as often as `sampler` (v,), logarithms, says."""
    numbers = torch.arange(len(sampler))
    zeros = torch.zeros_like(numbers)
    return MicroBatch(
        samples=(0,),
        layout=None,
        tokens=zeros[None],
        positions=zeros[None],
        predictors=zeros[:1],
        temperatures=torch.ones(1),
        heated=False,
        source=zeros,
        target=numbers,
        sampled=sampler,
        advantage=torch.ones_like(sampler),
        weight=sampler.exp(),
        version=zeros,
        row=numbers,
    )


FAITHFUL = [
    ("reinforce", 0.0),
    ("gspo", 0.0),
    ("minirl", 0.0),
    *((loss, apart) for loss in ("ppo_clip", "cispo") for apart in (0.0, 0.1)),
]


@each_row(("loss", "apart"), FAITHFUL)
def test_on_average_distillation_follows_the_gradient_of_the_divergence_from_the_teacher(
    loss: str, apart: float
) -> None:
    """Also where the tokens are of an older policy, whose logits were `apart`."""
    draw = torch.Generator().manual_seed(1)
    start, teacher, older = (torch.randn(7, generator=draw, dtype=torch.float64) for _ in range(3))
    config = AlgorithmConfig.model_validate({"method": "distill", "teacher": "x", "loss": loss})
    logits = start.clone().requires_grad_()
    logprob = torch.log_softmax(logits, -1)
    batch = every_token(torch.log_softmax(start + apart * older, -1))
    entries, entropy = batch.entries(logprob, 0), torch.zeros_like(logprob)
    objective = distillation_objective(entries, batch.weight, entropy, torch.log_softmax(teacher, -1), config)
    (found,) = torch.autograd.grad(objective.loss.sum(), logits, retain_graph=True)
    divergence = (logprob.exp() * (logprob - torch.log_softmax(teacher, -1))).sum()
    (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    same = distillation_objective(entries, batch.weight, entropy, logprob.detach(), config)
    (nothing,) = torch.autograd.grad(same.loss.sum(), logits)
    assert torch.equal(nothing, torch.zeros(7, dtype=torch.float64))


def test_sampled_tokens_alone_bring_a_policy_to_its_teacher() -> None:
    draw = torch.Generator().manual_seed(2)
    logits, target = (2 * torch.randn(7, generator=draw, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    teacher = torch.log_softmax(target, -1)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    config = AlgorithmConfig.model_validate({"method": "distill", "teacher": "x"})
    distances = []
    for _ in range(150):
        logprob = torch.log_softmax(logits, -1)
        distances.append(float((logprob.exp() * (logprob - teacher)).sum().detach()))
        drawn = torch.multinomial(logprob.detach().exp(), 32, replacement=True, generator=draw)
        places = torch.arange(32)
        batch = replace(
            every_token(logprob.detach()),
            source=torch.zeros_like(places),
            target=drawn,
            sampled=logprob.detach()[drawn],
            weight=torch.full((32,), 1 / 32, dtype=torch.float64),
            row=places,
            version=torch.zeros_like(places),
        )
        entries, entropy = batch.entries(logprob[drawn], 0), torch.zeros_like(teacher[drawn])
        optimizer.zero_grad()
        distillation_objective(entries, batch.weight, entropy, teacher[drawn], config).loss.sum().backward()
        optimizer.step()
    assert distances[0] > 1 and distances[-1] < 0.01 * distances[0]
