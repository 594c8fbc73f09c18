"""Whole runs of the training loop, on an engine without a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astune.config.clock import read_clock
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import AstuneError, ConfigError, InvariantError
from astune.monitor import blocking
from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics
from astune.testing import CountingLearner, script_engine
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import RunReport
from astune.viewer import write_report

RunJob = Callable[..., RunReport]
TIMES = ("time", "throughput", "seconds", "blocked")
NO_EVALUATION = ("astune.evaluation.after=false",)


def rows_of(report: RunReport) -> list[dict[str, Any]]:
    return list(read_metrics(report.run_dir / "metrics.jsonl"))


def timeless(report: RunReport) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if not any(part in k.split("/") for part in TIMES)} for row in rows_of(report)
    ]


def steps_of(report: RunReport) -> list[dict[str, Any]]:
    """The lines of train steps; each accounts for every token."""
    rows = [row for row in rows_of(report) if "episodes/total" in row]
    for row in rows:
        assert row["tokens/sampled"] == row["tokens/trained"] + sum(row[name] for name in row if "/dropped_" in name)
    return rows


def test_the_loop_drives_any_engine(conf: Path, run_job: RunJob, learners: list[CountingLearner]) -> None:
    evaluate = ("astune.evaluation.before=true", "astune.evaluation.every=2", "astune.trainer.warmup_steps=2")
    report = run_job(conf, *evaluate, "astune.trainer.learning_rate=1.0", "astune.monitor.check_invariants=true")
    assert (report.status, report.steps) == ("completed", 3)
    steps = steps_of(report)
    assert [(row["step"], row["policy_version"], row["episodes/total"]) for row in steps] == [
        (1, 1, 6),
        (2, 2, 6),
        (3, 3, 6),
    ]
    assert all(row["policy_age/max"] == 0 for row in steps)
    assert [row["step"] for row in rows_of(report) if "eval/greedy/reward" in row] == [0, 2, 3]
    (learner,) = learners
    assert learner.rates == [0.5, 1.0, 1.0]
    assert steps[-1]["weight"] == learner.weight != 0
    assert len(list(read_episodes(report.run_dir / "episodes" / "train.jsonl"))) == 18
    assert len(list((report.run_dir / "checkpoints").iterdir())) == 3


@pytest.mark.fault(
    "Runs and resuming",
    "a gradient is not finite",
    "the update is skipped and counted; the weights stay and the run goes on",
)
def test_a_skipped_update_trains_nothing_and_the_run_goes_on(conf: Path, run_job: RunJob) -> None:
    settings = ("astune.trainer.updates_per_step=2", *NO_EVALUATION)
    first, second, third = steps_of(run_job(conf, *settings, skipped={0, 2, 3}))
    assert [row["updates/skipped"] for row in (first, second, third)] == [1, 2, 0]
    assert [row["policy_version"] for row in (first, second, third)] == [1, 1, 2]
    assert 0 < first["tokens/trained"] < third["tokens/trained"]
    assert second["tokens/trained"] == 0 and "weight" not in second
    assert second["tokens/dropped_skipped_update"] == second["tokens/sampled"]


def test_a_run_ends_after_too_many_skipped_updates_in_a_row_and_keeps_the_steps_before(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("astune.trainer.max_skipped_updates=1", "astune.trainer.save_every=0")
    report = run_job(conf, *settings, skipped={1, 2})
    assert (report.status, report.steps) == ("failed", 2)
    assert "2 updates in a row had a loss or gradient that is not finite" in " ".join(capsys.readouterr().out.split())
    assert [path.name for path in (report.run_dir / "checkpoints").iterdir()] == ["step_000002"]


@pytest.mark.fault(
    "What a run says",
    "every attempt at a task fails",
    "counted as failed and without a verdict; kept with turns and error",
)
def test_failed_episodes_are_counted_and_never_scored_as_zero(write_job: Callable[..., Path], run_job: RunJob) -> None:
    report = run_job(write_job(tasks=2, broken=1), "astune.trainer.total_steps=1")
    (row,) = steps_of(report)
    assert (row["episodes/failed"], row["episodes/unjudged"], row["stop/error"]) == (3, 3, 3)
    records = list(read_episodes(report.run_dir / "episodes" / "train.jsonl"))
    failed = [record.episode for record in records if record.episode.error]
    assert len(failed) == 3
    assert all(episode.reward is None and len(episode.turns) == 1 for episode in failed)
    assert "this task always fails" in str(failed[0].error)


@pytest.mark.fault(
    "What a run says",
    "Every episode of a run fails",
    "The run stops after three steps, the report says why, and the exit code is not 0",
)
def test_a_run_whose_episodes_all_fail_stops_and_says_why(
    write_job: Callable[..., Path], run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = write_job(tasks=2, broken=2)
    report = run_job(conf, "astune.trainer.total_steps=9")
    assert (report.status, report.steps) == ("failed", 3)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("failed train/") == 1
    assert "workflow: ValueError: this task always fails" in shown and "agents.py:" in shown
    assert "nothing could be judged in 3 steps in a row" in shown and "18 times workflow: ValueError" in shown
    page = write_report(report.run_dir).read_text()
    assert "Nothing was learned: no episode was judged" in page and f"{conf.with_name('agents.py')}:" in page


def test_a_tool_that_dies_in_mid_run_is_told_of_shown_and_by_a_key_ends_the_run(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(prompt: str) -> str:
        return "4" if "tool_response" in prompt else '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'

    agent = f"astune.rollout.agentscope_learn_protocol={conf.with_name('agents.py')}:calculating"
    settings = (agent, "astune.rollout.num_repeat=4", "astune.rollout.max_tokens=64", "astune.trainer.total_steps=9")
    report = run_job(conf, *settings, "astune.trainer.max_failed_tool_steps=2", answers=answers)
    assert (report.status, report.steps) == ("failed", 4)
    rows = steps_of(report)
    assert [(row["tools/calls/add"], row["tools/errors/add"]) for row in rows] == [(8, 0), (8, 6), (8, 8), (8, 8)]
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        shown.count(
            "the tool add has worked before, and now all its 8 calls have failed (2 tasks), the first: Error: the calc"
        )
        == 1
    )
    assert "every call of the tool add failed in 2 steps in a row (astune.trainer.max_failed_tool_steps)" in shown
    told = "22 of 32 calls of add failed (22 said no), in 2 steps, 3 to 4, all of them"
    assert told in shown
    assert f"{told}, as here: Error: the calculator is gone" in write_report(report.run_dir).read_text()


@pytest.mark.fault(
    "What a run says",
    "A run goes through all its steps and none of them changed the model",
    "It says so and why; exit code 3",
)
def test_a_run_without_any_signal_says_so_at_its_end(conf: Path, run_job: RunJob) -> None:
    agent = f"astune.rollout.agentscope_learn_protocol={conf.with_name('agents.py')}:same_for_all"
    report = run_job(conf, agent, "astune.trainer.total_steps=1")
    assert report.status == "learned_nothing"
    assert "all attempts at a task got the same reward" in report.summary["nothing_learned"]


def test_what_blocks_and_what_prints_is_told_with_its_line_and_its_episode(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "EVERY", 0.01)
    monkeypatch.setattr(blocking, "NOTICED", 0.1)
    agents = conf.with_name("agents.py")
    agent = f"astune.rollout.agentscope_learn_protocol={agents}:blocker"
    report = run_job(conf, agent, "astune.trainer.total_steps=1", *NO_EVALUATION)
    (row,) = rows_of(report)
    code = agents.read_text().splitlines()
    place = f"agents.py:{1 + code.index('    time.sleep(0.1)')}"
    told_of = {name.partition("/")[2]: seconds for name, seconds in row.items() if name.startswith("blocked/")}
    assert told_of[place] > 0.1 and row["time/blocked"] == pytest.approx(sum(told_of.values()))
    assert report.summary["blocked"] == told_of
    lines = capsys.readouterr().out.splitlines()
    printed = {line for line in lines if "asking" in line}
    assert len(printed) == 6 and all(re.fullmatch(r"\[train/1/\w+/[012]\] asking", line) for line in printed)
    told, *_ = [line for line in lines if "blocked for" in line and place in line]
    assert f"{agents}:{place.rpartition(':')[2]}: `time.sleep(0.1)`" in told


@pytest.mark.fault(
    "What a run says", "a plug-in of the user makes training impossible", "the run fails, and the terminal says why"
)
def test_training_that_cannot_go_on_leaves_a_failed_run_that_says_why(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = conf.with_name("broken.py")
    broken.write_text("def advantage(rewards):\n    return rewards[1:]\n")
    report = run_job(conf, f"astune.algorithm.advantage={broken}:advantage")
    assert (report.status, report.steps) == ("failed", 0)
    assert "expected one finite number for each" in " ".join(capsys.readouterr().out.split())
    assert (report.run_dir / "config.yaml").is_file()


@pytest.mark.parametrize("override", ["astune.evaluation.before=true", "astune.evaluation.before=false"])
def test_invariants_are_checked_in_evaluations_and_in_training(
    conf: Path, run_job: RunJob, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setattr("astune.context_tracker.merge.TurnForest.timelines", lambda forest: ())
    report = run_job(conf, "astune.monitor.check_invariants=true", override)
    assert report.status == "failed" and isinstance(report.error, InvariantError)
    assert "turn 0 has 0 spans of its own" in str(report.error)


@pytest.mark.fault(
    "Input files and settings", "settings that cannot work", "an error that names the key before a run folder is made"
)
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("astune.trainer.tasks_per_step=9", "tasks_per_step is 9, but there are only 4 training tasks"),
        ("astune.rollout.agentscope_learn_protocol=null", "agentscope_learn_protocol: not set"),
        ("astune.algorithm.advantage=grbo", "Did you mean 'grpo'"),
    ],
)
def test_bad_settings_stop_before_a_run_folder_is_made(
    conf: Path, run_job: RunJob, override: str, message: str
) -> None:
    with pytest.raises(AstuneError, match=message):
        run_job(conf, override)
    assert not conf.with_name("runs").exists()


@pytest.mark.parametrize("stages", ["[]", "[{algorithm: {method: rl}}, {algorithm: {method: rl}}]"])
def test_a_run_has_one_clock_which_it_has_too_when_it_goes_on(conf: Path, stages: str) -> None:
    clocks = []

    def load(config: AstuneConfig) -> Engine:
        clocks.append(config.model.clock)
        return script_engine(lambda prompt: "4")(config)

    def run(steps: int, *overrides: str, resume: bool = False) -> Path:
        settings = (f"astune.stages={stages}", f"astune.trainer.total_steps={steps}", *overrides)
        loaded = load_config(conf, (*NO_EVALUATION, "astune.allow_changes=false", *settings), resume=resume)
        return run_training(loaded, load).run_dir / "config.yaml"

    config_path = run(1)
    (begun,) = set(clocks)
    assert begun is not None and read_clock(config_path) == begun
    other = begun.replace(year=2001)
    config_path.write_text(config_path.read_text().replace(begun.isoformat(), other.isoformat()))
    clocks.clear()
    run(2, resume=True)
    assert set(clocks) == {other} and read_clock(config_path) == other
    with pytest.raises(ConfigError, match=r"astune.model.clock: '2001-.* before, '1999-01-01T00:00:00' now"):
        run(3, "astune.model.clock=1999-01-01", resume=True)
    config_path.write_text(re.sub(r"\n +clock: .*", "", config_path.read_text()))  # as an older ASTune wrote it
    run(3, resume=True)
    assert clocks[-1] == read_clock(config_path) != other


@pytest.mark.fault("Runs and resuming", "`--resume` where there is no run", "an error that says which run is missing")
def test_resume_without_a_run_is_explained(conf: Path, run_job: RunJob) -> None:
    with pytest.raises(ConfigError, match="there is no run"):
        run_job(conf, resume=True)
