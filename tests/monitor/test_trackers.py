"""What holds of every tracker: configured, it never stops a run. The real packages: tests/trackers."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astune.config.load import load_config
from astune.config.schema import Config
from astune.errors import ConfigError, MissingDependency, PluginError
from astune.monitor import MetricsLog, RunDir, read_metrics
from astune.monitor.trackers import Tracker, load_trackers, open_trackers, opened
from tests.rows import each_row

GOOD = """\
astune:
  rollout: {agentscope_learn_protocol: agent.py:Agent}
  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}
  evaluation: {every: 0}
  monitor: """


@each_row(
    ("monitor", "expected"),
    [
        (
            "{trackers: [wandb, wandb]}",
            "trackers: expected each tracker once, and 'wandb' is there twice",
        ),
        ("{trackers: [a.py:Mine, b.py:Mine]}", "astune.monitor.trackers: expected each tracker once, and 'Mine' is"),
        (
            "{trackers: [wandbb]}",
            "astune.monitor.trackers: expected the name of a tracker or a plug-in ('package.module:Name' or "
            "'path/file.py:Name'). Did you mean 'wandb'? There are: tensorboard, wandb, swanlab, mlflow, trackio, got",
        ),
        (
            "{trackers: [wandb], wandb: {projekt: x}}",
            "unknown key. Did you mean 'astune.monitor.wandb.project'?",
        ),
        (
            "{wandb: {project: x}}",
            "astune.monitor.wandb.project: for the tracker 'wandb', which",
        ),
        (
            "{tracker_episodes: 2}",
            "astune.monitor.tracker_episodes: no tracker of",
        ),
        (
            "{trackers: [mlflow], mlflow: {tracking_uri: 'http://me:secret@host'}}",
            "astune.monitor.mlflow.tracking_uri: holds a password or token",
        ),
        (
            "{trackers: [trackio], trackio: {space_id: a/b, server_url: 'http://host'}}",
            "astune.monitor.trackio.server_url: astune.monitor.trackio.space_id is set too",
        ),
    ],
)
def test_what_is_wrong_with_trackers_is_said_first(tmp_path: Path, monitor: str, expected: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(GOOD + monitor)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert expected in str(error.value)
    assert "run.yaml:5: " in str(error.value)


def test_the_spelling_of_older_files_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for older, expected in (("false", ()), ("true", ("tensorboard",))):
        path.write_text(GOOD + f"{{tensorboard: {older}}}")
        assert load_config(path).config.astune.monitor.trackers == expected


def test_a_package_that_is_missing_is_named(make_config: Callable[..., Config], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(opened, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"'wandb' needs the package wandb: pip install 'astune\[wandb\]'"):
        load_trackers(make_config(monitor={"trackers": ["wandb"]}).astune.monitor)


def test_a_plug_in_has_to_be_a_tracker(make_config: Callable[..., Config]) -> None:
    with pytest.raises(PluginError, match="expected a class derived from"):
        load_trackers(make_config(monitor={"trackers": ["json:JSONDecoder"]}).astune.monitor)


class Told(Tracker):
    """Keeps what it is told, and fails where it is told to."""

    heard: list[tuple[Any, ...]] = []  # noqa: RUF012
    fails: set[str] = set()  # noqa: RUF012

    def _hear(self, what: str, *told: Any) -> None:
        Told.heard.append((what, *told))
        if what in Told.fails:
            raise ConnectionError("no network")

    def start(self, run: Any) -> str:
        self._hear("start", run.id)
        return "7"

    def go_back(self, step: int) -> None:
        self._hear("go_back", step)

    def log(self, step: int, values: Any, time: float) -> None:
        self._hear("log", step, values)

    def finish(self, status: str) -> None:
        self._hear("finish", status)


def open_log(config: Config, run_dir: RunDir, said: list[str]) -> MetricsLog:
    trackers = open_trackers(load_trackers(config.astune.monitor), config, run_dir, said.append)
    return MetricsLog(run_dir, trackers)


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    Told.heard, Told.fails = [], set()
    return make_config(monitor={"trackers": [f"{__name__}:Told"]})


def test_a_run_goes_on_in_the_same_run_there(config: Config, run_dir: RunDir) -> None:
    for _ in range(2):
        log = open_log(config, run_dir, [])
        log.truncate_after(1)
        log.log(2, {"loss": 0.5})
        log.close("completed")
        log.close()
    assert json.loads((run_dir.path / "trackers.json").read_text()) == {"Told": "7"}
    told = [("go_back", 1), ("log", 2, {"loss": 0.5}), ("finish", "completed")]
    assert Told.heard == [("start", None), *told, ("start", "7"), *told]


@pytest.mark.fault(
    "Records and checkpoints",
    "a tracker cannot be reached or fails: W&B, SwanLab, MLflow, Trackio, TensorBoard or one's own",
    "said once; the run goes on, and `metrics.jsonl` has everything",
)
@each_row(
    ("fails", "expected"),
    [
        ({"start", "log"}, "start failed (ConnectionError: no network). The run goes on; nothing goes there"),
        (
            {"log"},
            "log failed (ConnectionError: no network). The run goes on; what it did not take",
        ),
        ({"finish"}, "finish failed (ConnectionError: no network)"),
    ],
)
def test_a_tracker_that_fails_is_said_once(fails: set[str], expected: str, make_config: Any, tmp_path: Path) -> None:
    Told.fails, said = fails, list[str]()
    config = make_config(monitor={"trackers": [f"{__name__}:Told", "tensorboard"]})
    run_dir = RunDir.open(config, resume=False)
    (run_dir.path / "tensorboard").write_text("a file where the folder should be")
    log = open_log(config, run_dir, said)
    for step in (1, 2):
        log.log(step, {"loss": 0.5})
    log.close("completed")
    assert len(said) == 2
    assert [text for text in said if text.startswith("tracker 'Told': ") and expected in text]
    assert [text for text in said if text.startswith("tracker 'tensorboard': start failed (RunFolderError: ")]
    assert [row["step"] for row in read_metrics(run_dir.metrics_path)] == [1, 2]
    run_dir.close()


def test_a_tracker_that_hangs_is_left_behind(config: Config, run_dir: RunDir, monkeypatch: Any) -> None:
    monkeypatch.setattr(opened, "LONGEST_FINISH", 0.0)
    leave, said = threading.Event(), list[str]()
    monkeypatch.setattr(Told, "log", lambda *told: leave.wait())
    log = open_log(config, run_dir, said)
    log.log(1, {"loss": 0.5})
    log.close("completed")
    leave.set()
    assert said == [
        "tracker 'Told': had not finished after 0 s. The run goes on; what it did not take is in metrics.jsonl alone"
    ]
