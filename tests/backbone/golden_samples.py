"""The samples that every backbone has to make of the same episodes: those in `golden_samples.json`, by step, each by
the number of the recorded timeline that has its tokens.

The episodes are recorded ones of real AgentScope agents (tests/agents/golden), put together to steps: several agents,
conversations that branch, tools that change, attempts nobody judged, one that failed, groups without signal. Written
anew by `REGENERATE=1 python -m pytest tests/backbone/test_golden_samples.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from astune.config.load import LoadedConfig, load_config
from astune.training import run
from astune.types import Episode, EpisodeError, Group, Sample, StopReason, Task, Verdict
from tests.agents.golden import from_golden, golden_path

FILE = Path(__file__).with_name("golden_samples.json")
JOB = """
astune:
  project_name: golden
  runs_dir: {runs}
  task_reader: {{jsonl: {{training: {{file_path: train.jsonl}}}}}}
  rollout: {{agentscope_learn_protocol: "tests.backbone.golden_samples:nobody", max_tokens: 64}}
  trainer: {{total_steps: 1, tasks_per_step: 1}}
  monitor: {{progress: "off", trackers: [], check_invariants: true}}
"""


class Term(NamedTuple):
    """One token in the loss: what it was sampled after, the token, its recorded log-probability, advantage x weight."""

    context: tuple[int, ...]
    token: int
    logprob: float
    credit: float


async def nobody(task: Task, tuner: object) -> None:
    raise AssertionError("the episodes are there already")


def attempts(task_id: str, *played: tuple[str, float | None, dict[str, Any]]) -> Group:
    """Recorded workflows as attempts at one task, each with its reward and what else is to be changed of it."""
    task = Task(task_id, "as recorded")
    episodes: list[Episode] = []
    for number, (workflow, reward, more) in enumerate(played):
        verdict = None if reward is None else Verdict(reward)
        recorded = from_golden(golden_path(2, workflow))
        known = {"episode_id": f"train/1/{task_id}/{number}", "task": task, "verdict": verdict}
        lasted = {**recorded.metrics, "seconds": 1.0}
        episodes.append(replace(recorded, metrics=lasted, **known, **more))
    return Group(task, tuple(episodes))


FAILED = {"stop_reason": StopReason.ERROR, "error": EpisodeError("workflow", "ValueError", "broken")}


def steps() -> dict[str, list[Group]]:
    return {
        "a task": [
            attempts(
                "all",
                ("team", 1.0, {}),
                ("two_attempts", 0.0, {}),
                ("compressed", 0.25, {"turn_rewards": {1: 0.5}}),
                ("debate", 0.5, {}),
                ("mcp", None, {}),
            )
        ],
        "three tasks": [
            attempts("plan", ("team_pipeline", 1.0, {}), ("debate_history", 0.0, {}), ("tools", None, FAILED)),
            attempts("easy", ("mcp", 1.0, {}), ("structured_model", 1.0, {})),
            attempts("hard", ("out_of_rounds", 0.5, {}), ("structured_reply", 0.0, {}), ("tools", 1.0, {})),
        ],
    }


def recorded_timelines() -> dict[str, list[tuple[int, ...]]]:
    """The tokens of each timeline, by episode."""
    episodes = (episode for groups in steps().values() for group in groups for episode in group.episodes)
    return {each.episode_id: [tuple(timeline.token_ids) for timeline in each.timelines] for each in episodes}


def rows_of(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """Samples as the file has them."""
    timelines = recorded_timelines()
    return [
        {
            "episode": sample.episode_id,
            "agent": sample.timeline.agent,
            "timeline": timelines[sample.episode_id].index(tuple(sample.timeline.token_ids)),
            "spans": [
                {"turn": span.turn, "from": span.start, "to": span.stop, "advantage": advantage, "weight": weight}
                for span, advantage, weight in zip(
                    sample.timeline.spans, sample.advantages, sample.weights, strict=True
                )
            ],
        }
        for sample in samples
    ]


def golden(step: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))[step]
    return rows


def terms(step: str) -> list[Term]:
    """What an update over the golden samples sums up, in any order."""
    recorded = {
        (episode.episode_id, number): turn.logprobs
        for group in steps()[step]
        for episode in group.episodes
        for number, turn in enumerate(episode.turns)
    }
    timelines = recorded_timelines()
    return sorted(
        Term(ids[:place], ids[place], logprob, span["advantage"] * span["weight"])
        for row in golden(step)
        for ids in [timelines[row["episode"]][row["timeline"]]]
        for span in row["spans"]
        if span["weight"]
        for place, logprob in zip(range(span["from"], span["to"]), recorded[row["episode"], span["turn"]], strict=True)
    )


def assert_trained(found: Iterable[Term], step: str) -> None:
    """Numbers may have been in single precision."""
    expected, ordered = terms(step), sorted(found)
    assert [(term.context, term.token) for term in ordered] == [(term.context, term.token) for term in expected]
    for name in ("logprob", "credit"):
        wanted = [getattr(term, name) for term in expected]
        assert [getattr(term, name) for term in ordered] == pytest.approx(wanted, rel=1e-5, abs=1e-8), name


def replayed(folder: Path, patch: pytest.MonkeyPatch, step: str, *overrides: str, backbone: str) -> LoadedConfig:
    """A job of one step that plays nothing, as its episodes are those of the golden step."""

    async def recorded(*_: object) -> Sequence[Group]:
        return steps()[step]

    patch.setattr(run, "roll_out", recorded)
    (folder / "train.jsonl").write_text(json.dumps({"query": "as recorded"}))
    job = folder / "job.yaml"
    job.write_text(JOB.format(runs=folder / "runs"))
    return load_config(job, overrides, backbone=backbone)
