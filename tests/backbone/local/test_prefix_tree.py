from __future__ import annotations

import itertools
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import Weighting, to_samples
from astune.algorithm.advantage import dr_grpo
from astune.algorithm.credit import Credit
from astune.backbone.local.learning import prefix_tree
from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.prefix_tree import QUERY_BLOCK, pack, split
from astune.backbone.local.model.attention import ATTENTION
from astune.backbone.losses.entries import Entries
from astune.backbone.losses.policy import LOSSES
from astune.config.schema import AlgorithmConfig
from astune.context_tracker.merge import TurnForest
from astune.errors import TrainingError
from astune.types import Episode, Group, Sample, Span, StopReason, Task, Timeline, Turn, Verdict

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=8).map(sorted)


@given(ROWS)
def test_a_path_reads_its_row_and_no_prefix_is_stored_twice(rows: list[tuple[int, ...]]) -> None:
    tree = pack(rows)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tuple(tree.tokens[path]) == row
        assert tree.positions[path].tolist() == list(range(len(row)))
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert len(tree.tokens) == len(prefixes)


@given(ROWS, st.integers(1, 30))
def test_splitting_keeps_order_and_limit(rows: list[tuple[int, ...]], most: int) -> None:
    parts = list(split(rows, most))
    assert [index for part in parts for index in part] == list(range(len(rows)))
    for part in parts:
        assert len(part) == 1 or len(pack([rows[index] for index in part]).tokens) <= most


def sample(tokens: list[int], spans: list[tuple[int, int]], advantages: list[float], temperature: float) -> Sample:
    found = [
        Span(i, start, stop, 0, temperature, True, [-1.0] * (stop - start)) for i, (start, stop) in enumerate(spans)
    ]
    line = Timeline("agent", tokens, tuple(found))
    return Sample(line, tuple(advantages), (1 / 128,) * len(spans), "task", "episode")


def branching_samples() -> list[Sample]:
    """Three groups that share a system prompt; attempts that part after some sampled tokens; two equal attempts."""
    random = np.random.default_rng(0)
    system = random.integers(0, 64, 2 * QUERY_BLOCK + 5).tolist()
    samples = []
    for group in range(3):
        question = system + random.integers(0, 64, 7 + group).tolist()
        first = random.integers(0, 64, 6).tolist()
        for attempt in range(4):
            answer = first[: attempt + 2] + random.integers(0, 64, 5 * attempt).tolist()
            tokens = question + answer + random.integers(0, 64, 3).tolist() + random.integers(0, 64, 4).tolist()
            spans = [(len(question), len(question) + len(answer)), (len(tokens) - 4, len(tokens))]
            samples.append(sample(tokens, spans, [attempt / 4 - 1, 1.0], 1.0 if group else 0.5))
    return [*samples, samples[0]]


def logprobs_of_row(model: Any, one: Sample, span: Span) -> torch.Tensor:
    ids = torch.tensor([list(one.timeline.token_ids)])
    logits = model(input_ids=ids, use_cache=False).logits[0, span.start - 1 : span.stop - 1]
    return torch.log_softmax(logits.double() / span.temperature, -1).gather(1, ids[0, span.start : span.stop, None])[
        :, 0
    ]


def gradient_of_rows(model: Any, samples: list[Sample], config: AlgorithmConfig) -> torch.Tensor:
    """Every row by itself through transformers' own attention; losses written out."""
    model.set_attn_implementation("sdpa")
    model.zero_grad()
    for one in samples:
        for span, advantage, weight in zip(one.timeline.spans, one.advantages, one.weights, strict=True):
            logprob = logprobs_of_row(model, one, span)
            if config.loss == "reinforce":
                loss = -logprob * advantage
            else:
                ratio = (logprob - torch.tensor(list(span.logprobs), dtype=torch.float64)).exp()
                clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
                loss = -torch.minimum(ratio * advantage, clipped * advantage)
            (loss * weight).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient_of_trees(model: Any, samples: list[Sample], most_tokens: int, config: AlgorithmConfig) -> torch.Tensor:
    model.set_attn_implementation(ATTENTION)
    model.zero_grad()
    for batch in micro_batches(samples, most_tokens, torch.device("cpu")):
        logits = model(
            input_ids=batch.tokens,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.predictors,
            layout=batch.layout,
        ).logits[0]
        logprobs = torch.log_softmax(logits.double() / batch.temperatures[:, None], -1)
        logprob = logprobs[batch.source, batch.target]
        age = torch.zeros_like(batch.version)
        entries = Entries(logprob, batch.sampled.double(), batch.advantage.double(), batch.row, age)
        loss = LOSSES[config.loss](entries, config).loss
        (loss * batch.weight).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def assert_equal_gradients(model: Any, samples: list[Sample], most_tokens: int, config: AlgorithmConfig) -> None:
    rows = gradient_of_rows(model, samples, config)
    trees = gradient_of_trees(model, samples, most_tokens, config)
    assert rows.norm() > 1e-3
    assert (rows - trees).norm() / rows.norm() < 1e-6


@pytest.mark.parametrize("most_tokens", [10_000, 150])
@pytest.mark.parametrize("long_width", [prefix_tree.LONG_WIDTH, 8])
def test_the_gradient_of_a_tree_is_that_of_its_rows(
    model: Any, most_tokens: int, long_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_tree, "LONG_WIDTH", long_width)  # keys that are read where they are
    model.double()  # so that only a wrong formula can differ by much; the norms of Qwen3 compute in float32 still
    assert_equal_gradients(model, branching_samples(), most_tokens, AlgorithmConfig(loss="reinforce"))


def branching_episodes(model: Any) -> Group:
    """Two attempts whose first turn goes on in three ways, each rewarded differently, and then in two ways again.

    The recorded logprobs are the model's give or take 0.4, so that ratios lie within and beyond both clip bounds.
    """
    random = np.random.default_rng(1)
    task = Task("task", "query")

    def some(count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, 64, count).tolist())

    def turn(prompt: tuple[int, ...]) -> Turn:
        output = some(5)
        line = Timeline("a", (*prompt, *output), (Span(0, len(prompt), len(prompt) + 5, 0, 0.7, True, (0.0,) * 5),))
        with torch.no_grad():
            logprobs = logprobs_of_row(model, Sample(line, (1.0,), (1.0,), "t", "e"), line.spans[0])
        noise = torch.from_numpy(random.uniform(-0.4, 0.4, 5))
        return Turn("a", prompt, output, (logprobs + noise).tolist(), 0, "stop", temperature=0.7)

    episodes = []
    system = some(9)
    for number in range(2):
        turns = [turn((*system, *some(3)))]
        for before in (0, 0, 0, 1, 1):
            turns.append(turn((*turns[before].prompt_ids, *turns[before].output_ids, *some(2))))
        rewards = {2: 1.0, 3: -1.0, 4: 0.5, 5: -0.75}
        verdict, end = Verdict(number / 4), StopReason.COMPLETED
        episodes.append(
            Episode(
                f"{number}",
                task,
                tuple(turns),
                TurnForest(turns).timelines(),
                end,
                verdict=verdict,
                turn_rewards=rewards,
            )
        )
    return Group(task, tuple(episodes))


@pytest.mark.parametrize("loss", ["ppo_clip", "reinforce"])
@pytest.mark.parametrize("credit", get_args(Credit))
def test_branches_packed_or_apart_have_one_gradient_for_every_credit(model: Any, credit: Credit, loss: str) -> None:
    model.double().set_attn_implementation("sdpa")
    group = branching_episodes(model)
    samples, receipt = to_samples([group], dr_grpo, Weighting("episode_mean", credit))
    assert len(samples) == 8
    ratio_bounds = AlgorithmConfig(loss=loss, clip_low=0.2, clip_high=0.28)
    batches = list(micro_batches(samples, 10_000, torch.device("cpu")))
    assert sum(len(batch.target) for batch in batches) == receipt.loss_terms == {"once": 60}.get(credit, 100)
    assert sum(len(batch.predictors) for batch in batches) == 60  # one logit row per sampled token on any branch
    assert_equal_gradients(model, samples, 10_000, ratio_bounds)
    assert_equal_gradients(model, samples, 40, ratio_bounds)


def test_credits_whose_losses_differ_have_different_gradients(model: Any) -> None:
    model.double().set_attn_implementation("sdpa")
    group = branching_episodes(model)
    found = []
    for credit in get_args(Credit):
        samples, _ = to_samples([group], dr_grpo, Weighting("episode_mean", credit))
        found.append(gradient_of_trees(model, samples, 10_000, AlgorithmConfig()))
    for one, other in itertools.combinations(found, 2):
        assert (one - other).norm() / one.norm() > 1e-2


def test_a_token_that_nothing_predicts_is_refused() -> None:
    with pytest.raises(TrainingError, match="turn 0 of episode has an empty prompt"):
        list(micro_batches([sample([1, 2], [(0, 2)], [1.0], 1.0)], 100, torch.device("cpu")))
