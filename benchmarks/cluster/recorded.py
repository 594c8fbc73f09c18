"""Lengths and seconds out of a run's folder (docs/runs.md), and the seconds per call and per token that explain them.

Lengths come from `episodes/train.jsonl`: calls per episode, tokens that each sampled, tokens of its prompt that the
call before did not have. Seconds come from `metrics.jsonl`: `time/rollout` and `time/train` of a step. Seconds of a
single call, of tools and of judges are not recorded.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from cluster.clock import Clock
from cluster.rollout import Explorer, Rollout
from cluster.workload import Attempt, Batch, Call

from astune.errors import AstuneError
from astune.monitor import RunDir, read_episodes, read_metrics
from astune.token_ids import WIDTH, TokenIds, count_shared_bytes
from astune.types import Episode

MOST_CALL_SECONDS = 10.0


@dataclass(frozen=True)
class RecordedStep:
    step: int
    batch: Batch
    rollout_seconds: float
    train_seconds: float

    @property
    def seconds(self) -> float:
        return self.rollout_seconds + self.train_seconds

    @property
    def tokens(self) -> int:
        """Of all training rows."""
        return sum(attempt.tokens for task in self.batch for attempt in task)


def read_run(folder: Path) -> list[RecordedStep]:
    """The training steps of a run; episodes without a model call are left out. The first of several steps is too, for
    it warms up what the others find warm."""
    run = RunDir(folder)
    path = run.episodes_dir / "train.jsonl"
    if not path.is_file():
        raise AstuneError(f"{path}: there is no such file; --run takes the folder of a run that trained")
    tasks: dict[int, dict[str, list[Attempt]]] = defaultdict(lambda: defaultdict(list))
    for record in read_episodes(path):
        if record.episode.turns:
            tasks[record.step][record.episode.task.task_id].append(_attempt(record.episode))
    steps = [
        RecordedStep(int(row["step"]), batch, row["time/rollout"], row["time/train"])
        for row in read_metrics(run.metrics_path)
        if "time/rollout" in row and (batch := tuple(map(tuple, tasks[int(row["step"])].values())))
    ]
    if not steps:
        raise AstuneError(f"{run.metrics_path}: no step with time/rollout and episodes in {path}")
    return steps[1:] or steps


def max_concurrent(folder: Path) -> int:
    """Episodes that the run had under way at a time."""
    config = yaml.safe_load(RunDir(folder).config_path.read_text(encoding="utf-8"))
    return int(config["astune"]["rollout"]["max_concurrent"])


def _attempt(episode: Episode) -> Attempt:
    before: dict[str, bytes] = {}
    calls = []
    for turn in episode.turns:
        prompt, output = TokenIds.of(turn.prompt_ids).pack(), TokenIds.of(turn.output_ids).pack()
        known = count_shared_bytes(before.get(turn.agent, b""), prompt) // WIDTH
        calls.append(Call(len(turn.prompt_ids) - known, max(1, len(turn.output_ids))))
        before[turn.agent] = prompt + output
    return Attempt(tuple(calls))


def rollout_seconds(explorer: Explorer, batch: Batch) -> float:
    clock = Clock()
    Rollout(clock, explorer).submit(batch)
    clock.run()
    return clock.now


def train_seconds_per_token(steps: Sequence[RecordedStep]) -> float:
    return statistics.median(step.train_seconds / step.tokens for step in steps)


def with_fitted_calls(explorer: Explorer, steps: Sequence[RecordedStep]) -> Explorer:
    """The explorer with that `per_call` whose simulated rollouts last as long as the recorded ones, by the median."""

    def trial(seconds: float) -> Explorer:
        return replace(explorer, speed=replace(explorer.speed, per_call=seconds))

    def too_slow(seconds: float) -> bool:
        tried = trial(seconds)
        return statistics.median(rollout_seconds(tried, step.batch) / step.rollout_seconds for step in steps) > 1

    if too_slow(0.0):
        raise AstuneError(
            "the rollouts would take longer than recorded even if a call cost nothing: the decode steps given "
            "(--step-ms, --running-ms, --prompt-ms) are too slow for this run"
        )
    low, high = 0.0, MOST_CALL_SECONDS
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if too_slow(middle) else (middle, high)
    return trial(high)
