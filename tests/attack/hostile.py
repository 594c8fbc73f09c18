"""Hostile agents and judges of many kinds in one run, next to honest agents that must not notice.

The run is a real one of the shipped model on the local backbone. At its first step the honest agents must get, token by
token, what they get in a run without the others; and the run must go on to its end, with records that
can be read and weights that are numbers.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from astune.backbone.local.engine import LocalBackbone
from astune.config.load import load_config
from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics
from astune.types import Episode, RunReport
from tests.attack.found import Found
from tests.attack.hostile_agents import AGENTS

HERE = Path(__file__).parent
HONEST = 6
LOGPROB_TOLERANCE = 1e-4


def run(folder: Path, name: str, kinds: Sequence[str], steps: int) -> RunReport:
    """A run in which every step holds every task: the honest ones and one of each kind."""
    rows = [{"id": f"honest {n}", "query": f"What is {n} plus {n}?", "kind": "honest"} for n in range(HONEST)]
    rows += [{"id": kind, "query": f"What is {n} plus 1?", "kind": kind} for n, kind in enumerate(kinds)]
    tasks = folder / f"{name}.jsonl"
    tasks.write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "project_name": "attack",
        "experiment_name": name,
        "runs_dir": str(folder / "runs"),
        "task_reader.jsonl.training.file_path": str(tasks),
        "task_reader.shuffle": "false",
        "rollout.agentscope_learn_protocol": f"{HERE / 'hostile_agents.py'}:Mixed",
        "rollout.num_repeat": 2,
        "rollout.max_tokens": 8,
        "rollout.episode_timeout": 30,
        "task_judge.judge_protocol": f"{HERE / 'hostile_agents.py'}:judge",
        "task_judge.timeout": 2,
        "trainer.total_steps": steps,
        "trainer.tasks_per_step": len(rows),
        "trainer.learning_rate": 1e-4,
        "monitor.progress": "off",
        "monitor.trackers": "[]",
    }
    evaluations = [f"astune.evaluation.{when}" for when in ("before=false", "after=false", "every=0")]
    return LocalBackbone().run(load_config(None, [*evaluations, *(f"astune.{k}={v}" for k, v in settings.items())]))


def episodes(report: RunReport) -> dict[tuple[int, str], Episode]:
    records = read_episodes(report.run_dir / "episodes" / "train.jsonl")
    return {(record.step, record.episode.episode_id): record.episode for record in records}


def heard(episode: Episode) -> list[object]:
    """What an agent was given and how it ended. Log-probabilities are left to `agree`."""
    turns = [(turn.agent, tuple(turn.prompt_ids), tuple(turn.output_ids)) for turn in episode.turns]
    return [*turns, episode.reward, episode.stop_reason]


def agree(one: Episode, other: Episode) -> bool:
    """Tokens, reward and end are the same; log-probabilities too, but for the order in which a batch is summed up."""
    if heard(one) != heard(other):
        return False
    pairs = zip(_logprobs(one), _logprobs(other), strict=True)
    return all(math.isclose(a, b, abs_tol=LOGPROB_TOLERANCE) for a, b in pairs)


def _logprobs(episode: Episode) -> list[float]:
    return [logprob for turn in episode.turns for logprob in turn.logprobs]


def attack(kinds: Sequence[str] = tuple(AGENTS), steps: int = 2) -> Iterator[Found]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = episodes(run(folder, "alone", (), 1))
        try:
            report = run(folder, "mixed", kinds, steps)
        except BaseException as error:
            yield Found("faults: the run", False, f"raised {type(error).__name__}: {str(error)[:200]}")
            return
        yield from _verdicts(report, alone, kinds, steps)


def _verdicts(
    report: RunReport, alone: dict[tuple[int, str], Episode], kinds: Sequence[str], steps: int
) -> Iterator[Found]:
    done = (report.status, report.steps) == ("completed", steps)
    yield Found("faults: the run comes to its end", done, f"{report.status} after {report.steps} of {steps} steps")
    mixed = episodes(report)
    for kind in kinds:
        of_kind = [episode for (_, name), episode in mixed.items() if episode.task.task_id == kind]
        told = "; ".join(sorted({_end(episode) for episode in of_kind}))
        rewards = all(episode.reward is None or abs(episode.reward) < math.inf for episode in of_kind)
        yield Found(f"faults: {kind}", len(of_kind) == 2 * steps and rewards, told[:160])
    others = [key for key, episode in alone.items() if key not in mixed or not agree(mixed[key], episode)]
    yield Found("faults: honest agents notice nothing", not others, f"{len(alone)} episodes, others: {others[:3]}")
    rows = read_metrics(report.run_dir / "metrics.jsonl")
    odd = [name for row in rows for name, value in row.items() if not isinstance(value, int | float | None)]
    yield Found("faults: metrics are numbers", bool(rows) and not odd, f"{len(rows)} lines; {odd[:3]}")
    yield Found("faults: weights are numbers", _finite(report), "")


def _end(episode: Episode) -> str:
    error = "" if episode.error is None else f": {episode.error.kind} {episode.error.message}"
    reward = "no reward" if episode.reward is None else f"reward {episode.reward:.3g}"
    return f"{episode.stop_reason.value}, {reward}{error[:100]}"


def _finite(report: RunReport) -> bool:
    from safetensors.torch import load_file

    newest = sorted((report.run_dir / "checkpoints").glob("step_*"))[-1]
    return all(bool(tensor.isfinite().all()) for tensor in load_file(newest / "model.safetensors").values())
