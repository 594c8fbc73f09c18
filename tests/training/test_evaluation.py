"""Held-out tasks: several sets, several attempts, when each is played. On an engine without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astune.config.load import load_config
from astune.errors import ConfigError, TaskError
from astune.monitor import read_episodes, read_metrics
from tests.training.conftest import RunJob


def more_sets(conf: Path, attempts: int = 1, **sets: dict[str, Any]) -> Path:
    """The job with sets of held-out tasks by name, from files that this writes."""
    job = json.loads(conf.read_text())
    hard = [{"query": f"{n} - 1?", "answer": "4", "level": n} for n in range(3)]
    (conf.parent / "hard.jsonl").write_text("\n".join(map(json.dumps, hard)))
    job["astune"]["evaluation"] |= {"attempts": attempts, "sets": sets}
    conf.write_text(json.dumps(job))
    return conf


def logged(run: Path, figure: str) -> list[int]:
    return [row["step"] for row in read_metrics(run / "metrics.jsonl") if figure in row]


def test_a_set_with_a_name_has_figures_and_episodes_of_its_own(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    more_sets(
        conf, 4, hard={"file_path": "hard.jsonl", "every": 1}, odd={"file_path": "hard.jsonl", "filter": "level==1"}
    )
    report = run_job(conf)
    rows = read_metrics(report.run_dir / "metrics.jsonl")
    assert logged(report.run_dir, "eval/hard/greedy/reward") == [1, 2, 3]
    assert logged(report.run_dir, "eval/odd/greedy/reward") == logged(report.run_dir, "eval/greedy/reward") == [3]
    last = {key: value for row in rows for key, value in row.items() if row["step"] == 3}
    assert (last["eval/hard/sampled/tasks"], last["eval/hard/sampled/attempts"]) == (3.0, 12.0)
    assert (last["eval/hard/greedy/attempts"], last["eval/odd/sampled/attempts"]) == (3.0, 4.0)
    assert last["eval/sampled/attempts"] == 4.0
    assert last["eval/hard/sampled/reward"] == 0.5  # attempts 0 and 2 of each four get 1
    episodes = list(read_episodes(report.run_dir / "episodes" / "eval_hard_sampled.jsonl"))
    assert len(episodes) == 36 and {record.phase for record in episodes} == {"eval/hard/sampled"}
    assert len({record.episode.episode_id for record in episodes}) == 36
    assert set(report.summary["held_out"]) == {
        f"{name}{decoding}" for name in ("", "hard/", "odd/") for decoding in ("sampled", "greedy")
    }
    assert report.summary["held_out"]["hard/sampled"]["last"]["tasks"] == 3.0
    told = " ".join(capsys.readouterr().out.split())
    assert "held-out at step 3 hard/sampled reward 0.500 of 3 tasks, 12 attempts" in told


def test_a_run_that_is_resumed_plays_only_the_sets_that_are_left(conf: Path, run_job: RunJob) -> None:
    more_sets(conf, hard={"file_path": "hard.jsonl"})
    run = run_job(conf).run_dir
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert "eval/hard/greedy" in lines[-1]
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    run_job(conf, resume=True)
    assert logged(run, "eval/hard/greedy/reward") == logged(run, "eval/hard/sampled/reward") == [3]
    assert len(list(read_episodes(run / "episodes" / "eval_hard_greedy.jsonl"))) == 3


def test_one_attempt_and_no_more_sets_give_the_figures_of_before(conf: Path, run_job: RunJob) -> None:
    row = read_metrics(run_job(conf).run_dir / "metrics.jsonl")[-1]
    assert (row["eval/greedy/reward"], row["eval/greedy/unjudged"]) == (1.0, 0.0)
    first = next(iter(read_episodes(conf.parent / "runs" / "test" / "job" / "episodes" / "eval_sampled.jsonl")))
    assert first.episode.episode_id.startswith("eval/sampled/3/")


def test_a_set_that_is_trained_on_is_refused(conf: Path, run_job: RunJob) -> None:
    more_sets(conf, known={"file_path": "train.jsonl"})
    with pytest.raises(TaskError, match=r"4 of 4 held-out tasks are trained on too"):
        run_job(conf)


@pytest.mark.parametrize(
    ("sets", "attempts", "said"),
    [
        ({"greedy": {"file_path": "hard.jsonl"}}, 1, "a set cannot be called as a way of decoding"),
        ({"hard": {"file_pat": "hard.jsonl"}}, 1, r"sets.hard.file_pat: unknown key. Did you mean '.*file_path'"),
        ({"hard": {"split": "test"}}, 1, "whose tasks have no named splits; expected file_path"),
        ({"hard": {"file_path": "hard.jsonl", "split": "test"}}, 1, "take one of the two out"),
        ({"a/b": {"file_path": "hard.jsonl"}}, 1, "expected names of letters, digits, - and _, and 'a/b' is none"),
        ({}, 0, "attempts: expected greater than 0"),
    ],
)
def test_a_set_that_makes_no_sense_is_refused(conf: Path, sets: dict[str, Any], attempts: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(more_sets(conf, attempts, **sets))


def test_several_greedy_attempts_are_refused(conf: Path) -> None:
    with pytest.raises(ConfigError, match="attempts at a task are equal under greedy decoding"):
        load_config(more_sets(conf, 4), ["astune.evaluation.decoding=[greedy]"])
