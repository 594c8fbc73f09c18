"""Turn a batch of episodes into training data, as an operator in Trinity's experience pipeline.

Advantages need all attempts at a task, and weights all episodes of a step, so both are computed here, where Trinity has
the whole explored batch together, with the same `to_samples` as on every other backbone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.common.experience import EID, CustomField, Experience

from astune.algorithm import BatchRules, Receipt, check_step, load_estimator, to_samples
from astune.backbone.trinity.explorer.experience import experiences_of, unpack_episode
from astune.backbone.trinity.shared.events import Explored
from astune.backbone.trinity.shared.mailbox import post
from astune.backbone.trinity.shared.parts import load_parts
from astune.rollout.metrics import rollout_metrics
from astune.training.rollout_setup import weighting_for
from astune.types import Group, Sample

ROWS = "astune_rows"
"""In `Experience.info` of every row: how many rows its batch has."""
BATCH = "astune_batch"
"""In `Experience.info` of every row: the number of the explored batch."""
REFERENCE = "astune_reference"


class SamplesOperator(ExperienceOperatorV1):  # type: ignore[misc]
    """Takes the envelopes of one explored batch and gives its rows. `rows_multiple` is what the number of rows must be
    a multiple of: 1 where the trainer takes any batch, the trainer's batch size where that is fixed."""

    def __init__(self, config: dict[str, Any], rows_multiple: int, trainer: str) -> None:
        self._config = load_parts({"config": config}).config
        self._advantage = load_estimator(self._config.algorithm)
        self._rules = BatchRules.of(self._config, self._config.model.max_model_len)
        self._rows_multiple, self._trainer = rows_multiple, trainer

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        if not exps:
            return [], {}
        groups, runs = unpack_groups(exps)
        samples, receipt, metrics = self.learn_from(groups)
        rows = experiences_of(samples, runs, multiple=self._rows_multiple, temperature=self._config.rollout.temperature)
        batch = int(exps[0].eid.batch)
        post(Explored(batch, len(groups), rollout_metrics(groups) | metrics, receipt, len(rows)))
        return as_batch(rows, batch, self._trainer), {"samples": float(len(samples))}

    def learn_from(self, groups: Sequence[Group]) -> tuple[list[Sample], Receipt, dict[str, float]]:
        """Make the samples of a batch, after the rules over its groups, and the figures of these."""
        ruled = self._rules(groups)
        samples, receipt = to_samples(ruled.groups, self._advantage, weighting_for(self._config), ruled.left_out)
        if self._config.monitor.check_invariants:
            check_step(groups, samples, receipt)
        return samples, receipt, ruled.metrics


def as_batch(rows: list[Experience], batch: int, trainer: str) -> list[Experience]:
    """The rows, each with what `WholeSteps` has to know of their batch. `trainer` is "tinker" or "verl".

    Trinity 0.6.0's `tinker` trainer wants log-probabilities of a reference model even where no loss uses them, so its
    rows carry the sampled ones under that name.
    """
    for row in rows:
        # the last two as Trinity's runner sets them: its replay buffer, if the user asks for one, orders by them
        row.info |= {ROWS: len(rows), BATCH: batch, "model_version_drift": 0, "use_count": 0}
        if trainer == "tinker":
            row.info[REFERENCE] = row.logprobs.tolist()
            row.custom_fields = [CustomField(REFERENCE, "ref_logprob", torch.float32)]
    return rows


def unpack_groups(exps: Sequence[Experience]) -> tuple[list[Group], dict[str, tuple[EID, float | None]]]:
    """The groups in the order of the batch's tasks, whatever order they were finished in, and for each episode the id
    of its envelope and its reward."""
    ordered = sorted(exps, key=lambda exp: (int(exp.eid.task), int(exp.eid.run)))
    groups: dict[int, list[Any]] = {}
    runs: dict[str, tuple[EID, float | None]] = {}
    for exp in ordered:
        episode = unpack_episode(exp)
        groups.setdefault(int(exp.eid.task), []).append(episode)
        runs[episode.episode_id] = (exp.eid, episode.reward)
    return [Group(episodes[0].task, tuple(episodes)) for episodes in groups.values()], runs
