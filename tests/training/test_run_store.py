"""`astune.monitor.store`: the database holds what the files of a run hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from astune.cli import main
from astune.errors import StoreError
from astune.monitor import read_metrics
from astune.store.database import Database, open_database
from astune.store.runs import RunStore
from astune.store.tables import run_episodes, run_samples, runs
from astune.testing import CountingLearner
from astune.types import RunReport, Sample, Span, Timeline
from tests.store.databases import database as database
from tests.store.databases import url as url

RunJob = Callable[..., RunReport]


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["step"], row["phase"], row["episode_id"]


def check_equal(database: Database, run: Path) -> None:
    """The database has the episodes of the files, line by line, and the samples of every step that counts."""
    lines = [json.loads(line) for path in (run / "episodes").glob("*.jsonl") for line in path.read_text().splitlines()]
    with database.reading() as connection:
        number = connection.scalar(sa.select(runs.c.id).where(runs.c.name == str(run)))
        rows = connection.scalars(sa.select(run_episodes.c.row).where(run_episodes.c.run == number)).all()
        assert sorted(rows, key=key) == sorted(lines, key=key)
        logged = run / "metrics.jsonl"  # which debugging does not write
        steps = {row["step"] for row in read_metrics(logged) if "episodes/total" in row} if logged.exists() else set()
        weighed = connection.execute(sa.select(run_samples).where(run_samples.c.run == number)).mappings().all()
        assert {row["step"] for row in weighed} <= steps
        trained = {row["episode_id"] for row in lines if row["phase"] == "train"}
        assert {row["episode_id"] for row in weighed} <= trained
        for step in {row["step"] for row in weighed}:
            mine = [row for row in weighed if row["step"] == step]
            total = sum(row["tokens"] * max(row["weights"]) for row in mine)
            assert all(len(row["advantages"]) == len(row["weights"]) for row in mine)
            assert total == pytest.approx(1.0, abs=1e-9)


def test_a_run_is_in_the_database_as_in_its_files(conf: Path, run_job: RunJob, url: str, database: Database) -> None:
    first, second = (run_job(conf, f"astune.monitor.store={url}").run_dir for _ in range(2))
    check_equal(database, first)
    check_equal(database, second)
    with database.reading() as connection:
        rows = connection.execute(sa.select(runs.c.name, runs.c.config).order_by(runs.c.id)).all()
        assert [name for name, _ in rows] == [str(first), str(second)]
        assert rows[0].config["astune"]["trainer"]["total_steps"] == 3
        assert rows[0].config["astune"]["monitor"]["store"] is None  # it may hold a password
        assert connection.scalar(sa.select(sa.func.count()).select_from(run_samples)) > 0


@pytest.mark.fault(
    "The store",
    "the database of a run takes nothing any more",
    "the run stops, says why, and saves no checkpoint whose rows are missing",
)
def test_a_run_whose_database_fails_stops_and_goes_on_later(
    conf: Path, run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    database = open_database(url)
    calls, original = [], CountingLearner.publish

    async def spoils(learner: CountingLearner) -> int:
        calls.append(1)
        if len(calls) == 3:  # after its first step has been saved: a run publishes once at its beginning
            rename(database, "run_episodes", "elsewhere")
        return await original(learner)

    with monkeypatch.context() as patch:
        patch.setattr(CountingLearner, "publish", spoils)
        report = run_job(conf, f"astune.monitor.store={url}")
    assert report.status == "failed"
    assert "takes nothing: no such table: run_episodes" in " ".join(capsys.readouterr().out.split())
    rename(database, "elsewhere", "run_episodes")
    report = run_job(conf, f"astune.monitor.store={url}", resume=True)
    assert (report.status, report.steps) == ("completed", 3)
    check_equal(database, report.run_dir)
    database.close()


def rename(database: Database, old: str, new: str) -> None:
    with database.writing() as connection:
        connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))


def test_a_database_that_cannot_be_used_ends_a_run_before_it_has_a_folder(
    conf: Path, tmp_path: Path, run_job: RunJob
) -> None:
    with pytest.raises(StoreError, match="in memory"):
        run_job(conf, "astune.monitor.store=sqlite://")
    assert not (tmp_path / "runs").exists()


def test_debug_writes_to_it_too(conf: Path, tmp_path: Path, database: Database, url: str) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps(["4", "5"]))
    words = ["--backbone=debug", "--conf", str(conf), f"--model=scripted:{script}", f"astune.monitor.store={url}"]
    assert main(words) == 0
    check_equal(database, tmp_path / "runs" / "test" / "job-debug")


def sample(episode: str) -> Sample:
    span = Span(0, 1, 3, 0, 1.0, True, (-0.5, -0.5))
    return Sample(Timeline("solver", (1, 2, 3), (span,)), (0.5,), (0.25,), "t", episode)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "x" * 5000, "日本"])
def test_any_text_of_a_task_can_be_written(database: Database, url: str, text: str) -> None:
    store = RunStore(url)
    store.begin("run", {}, now=1.0, again=False)
    row = {"step": 1, "phase": "train", "episode_id": text, "task_id": text, "reward": None, "answer": text}
    store.write(row)
    store.write_samples(1, [sample(text)])
    store.sync()
    with database.reading() as connection:
        assert connection.scalar(sa.select(run_episodes.c.row)) == row
        named = connection.scalar(sa.select(run_episodes.c.episode_id))
        assert named == connection.scalar(sa.select(run_samples.c.episode_id)) and len(str(named)) >= len(text)
    store.close()


def test_a_former_run_of_the_same_folder_keeps_its_rows(database: Database, url: str) -> None:
    row = {"step": 1, "phase": "train", "episode_id": "e", "task_id": "t", "reward": 1.0}
    for again in (False, False, True):
        store = RunStore(url)
        store.begin("run", {}, now=1.0, again=again)
        store.write(row)
        store.close()
    with database.reading() as connection:
        counted = sa.select(runs.c.name, sa.func.count()).join(run_episodes).group_by(runs.c.name, runs.c.id)
        assert [tuple(each) for each in connection.execute(counted.order_by(runs.c.id))] == [("run#1", 1), ("run", 2)]
