"""The trackers that ship, each with its real package and without a network: what is on the disk is what was logged, of
a run that went on too. `make test-trackers`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("swanlab")  # in the environment of `make test-trackers` alone

CHILD = """
import sys
from pathlib import Path
from astune.config.schema import Config
from astune.monitor import MetricsLog, RunDir
from astune.monitor.trackers import load_trackers, open_trackers
from astune.types import Episode, StopReason, Task, Turn, Verdict
import json

folder, monitor, step = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
config = Config.model_validate({"astune": {"project_name": "p", "seed": 7, "monitor": monitor}})
said = []
run_dir = RunDir(folder)
log = MetricsLog(run_dir, open_trackers(load_trackers(config.astune.monitor), config, run_dir, said.append))
log.log(step, {"reward/mean": step / 4, "loss": 0.1 * step, "tools/calls/(none)": 1.0})
log.log(step, {"eval/greedy/success": 0.5})
turn = Turn(
    agent="a",
    messages=({"role": "user", "content": "6 * 7?"},),
    response={"role": "assistant", "content": "42"},
    prompt_ids=(1,),
    output_ids=(2,),
    logprobs=(-0.5,),
    finish_reason="stop",
    policy_version=0,
    temperature=1.0,
)
task = Task("t1", "6 * 7?")
episode = Episode("e", task, (turn,), (), StopReason.COMPLETED, verdict=Verdict(1.0, passed=True, reason="right"))
log.show(step, "train", [episode, episode])
log.close("completed")
print("SAID", json.dumps(said))
"""
FIGURES = {"reward/mean", "loss", "tools/calls/(none)", "eval/greedy/success"}
EXPECTED = {
    (step, name, value)
    for step in (1, 2)
    for name, value in (
        ("reward/mean", step / 4),
        ("loss", 0.1 * step),
        ("tools/calls/(none)", 1.0),
        ("eval/greedy/success", 0.5),
    )
}


def log_twice(folder: Path, monitor: dict[str, Any]) -> list[str]:
    """Log a step, and another as the run goes on in a second process. Returns what was said of failures."""
    said = []
    run = folder / "run"
    run.mkdir()
    hidden = {"HOME": str(folder), "TRACKIO_DIR": str(folder / "trackio"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    known = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SWANLAB"))}
    for step in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(run), json.dumps({"tracker_episodes": 1, **monitor}), str(step)],
            env={**known, **hidden},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said += json.loads(done.stdout.rpartition("SAID ")[2])
    return said


def read_log(path: Path, header: int) -> list[bytes]:
    """Read the records of a file in the format of LevelDB's log, as two of the packages write it."""
    data, place, records, part = path.read_bytes(), header, [], b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records


def test_wandb(tmp_path: Path) -> None:
    assert (
        log_twice(tmp_path, {"trackers": ["wandb"], "wandb": {"mode": "offline", "project": "q", "group": "g"}}) == []
    )
    from wandb.proto import wandb_internal_pb2

    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    points, runs = set(), []
    for path in files:
        for data in read_log(path, 7):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                runs.append((record.run.run_id, record.run.project, record.run.run_group))
            if record.HasField("history"):
                items = record.history.item
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                points |= {(row["step"], name, row[name]) for name in FIGURES & row.keys()}
    assert points == EXPECTED
    (kept,) = json.loads((tmp_path / "run" / "trackers.json").read_text()).values()
    assert set(runs) == {(kept, "q", "g")}
    tables = [json.loads(path.read_text()) for path in (tmp_path / "run").rglob("*.table.json")]
    assert {row["data"][0][0]: row["data"][0][1:4] for row in tables} == {1: ["t1", 1.0, True], 2: ["t1", 1.0, True]}


def test_swanlab(tmp_path: Path) -> None:
    monitor = {"trackers": ["swanlab"], "swanlab": {"mode": "offline", "project": "q"}}
    assert log_twice(tmp_path, monitor) == []
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    points, ids = set(), set()
    for path in (tmp_path / "run" / "swanlog").glob("run-*/*.swanlab"):
        reader = DataStoreReader()
        reader.open(path)
        for data in reader:
            record = Record.FromString(data)
            if record.HasField("start"):
                ids.add((record.start.id, record.start.project))
            if record.HasField("scalar"):
                points.add((record.scalar.step, record.scalar.key, record.scalar.value.number))
        reader.close()
    assert points == EXPECTED
    (kept,) = json.loads((tmp_path / "run" / "trackers.json").read_text()).values()
    assert ids == {(kept, "q")}
    texts = [path.read_text() for path in (tmp_path / "run" / "swanlog").rglob("*.txt") if "media" in path.parts]
    assert len(texts) == 2 and all("[assistant] 42" in text and "judge: right" in text for text in texts)


@pytest.mark.filterwarnings("ignore")  # of its own reading
def test_mlflow(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/mlflow.db"
    monitor = {"trackers": ["mlflow"], "mlflow": {"tracking_uri": address, "experiment": "q"}}
    assert log_twice(tmp_path, monitor) == []
    import mlflow

    mlflow.set_tracking_uri(address)
    client = mlflow.MlflowClient()
    (kept,) = json.loads((tmp_path / "run" / "trackers.json").read_text()).values()
    experiment = client.get_experiment_by_name("q")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status, run.data.params["astune.seed"]) == (kept, "FINISHED", "7")
    names = {name: "tools/calls/_none_" if "(" in name else name for name in FIGURES}
    points = {
        (each.step, name, each.value)
        for name, there in names.items()
        for each in client.get_metric_history(kept, there)
    }
    assert points == EXPECTED
    traces = client.search_traces([experiment.experiment_id])
    assert {trace.info.tags["step"] for trace in traces} == {"1", "2"}
    assert all(trace.data.spans[0].outputs["messages"] == [{"role": "assistant", "content": "42"}] for trace in traces)


def test_trackio(tmp_path: Path) -> None:
    assert log_twice(tmp_path, {"trackers": ["trackio"], "trackio": {"project": "q"}}) == []
    program = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as s\n"
        "(run,) = s.get_runs('q'); print(json.dumps([run, s.get_logs('q', run), s.get_traces('q', run)]))"
    )
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
    name, rows, traces = json.loads(subprocess.check_output([sys.executable, "-c", program], env=env, text=True))
    assert [name] == list(json.loads((tmp_path / "run" / "trackers.json").read_text()).values())
    assert {(row["step"], key, row[key]) for row in rows for key in FIGURES & row.keys()} == EXPECTED
    assert {(trace["step"], trace["messages"][-1]["content"]) for trace in traces} == {(1, "42"), (2, "42")}


@pytest.mark.parametrize(
    ("monitor", "expected"),
    [
        ({"trackers": ["wandb"]}, "no key: `wandb login`, WANDB_API_KEY, or astune.monitor.wandb.mode: offline"),
        ({"trackers": ["swanlab"]}, "no API key was provided"),
        ({"trackers": ["mlflow"], "mlflow": {"tracking_uri": "http://127.0.0.1:9"}}, "start failed"),
        ({"trackers": ["trackio"], "trackio": {"server_url": "http://127.0.0.1:9"}}, "start failed"),
    ],
    ids=lambda value: value["trackers"][0] if isinstance(value, dict) else "",
)
def test_without_key_or_network_it_is_said_and_the_run_goes_on(
    tmp_path: Path, monitor: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = log_twice(tmp_path, monitor)
    assert len(said) == 2 and all(expected in text for text in said)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4
