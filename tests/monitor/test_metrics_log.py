import json
import subprocess
import sys

import pytest

from astune.errors import AstuneError
from astune.monitor import MetricsLog, read_metrics
from tests.monitor.tensorboard import log_with_tensorboard


def test_each_line_is_on_disk_as_soon_as_it_is_logged(run_dir):
    log = MetricsLog(run_dir)
    log.log(1, {"loss": 0.5})
    assert [row["loss"] for row in read_metrics(run_dir.metrics_path)] == [0.5]
    log.close()


@pytest.mark.fault(
    "Records and checkpoints", "a figure is NaN or infinite", "it is null, and the file stays strict JSON"
)
def test_figures_that_are_not_finite_are_null_and_the_file_stays_strict_json(run_dir):
    log = log_with_tensorboard(run_dir)
    log.log(1, {"loss": float("nan"), "grad_norm": float("inf"), "reward/mean": 0.0})
    log.close()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    row = json.loads(run_dir.metrics_path.read_text(), parse_constant=refuse)
    assert (row["loss"], row["grad_norm"], row["reward/mean"]) == (None, None, 0.0)


def test_a_resumed_run_has_no_double_points(run_dir):
    log = MetricsLog(run_dir)
    for step in range(5):
        log.log(step, {"loss": float(step)})
    log.close()
    log = MetricsLog(run_dir)
    log.truncate_after(2)
    log.log(3, {"loss": 30.0})
    log.close()
    rows = read_metrics(run_dir.metrics_path)
    assert [(row["step"], row["loss"]) for row in rows] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]


@pytest.mark.fault(
    "Records and checkpoints",
    "a crash cuts the last line of the metrics",
    "it is skipped when read and removed when the run goes on",
)
def test_a_line_cut_off_by_a_crash_is_skipped_and_removed_on_resume(run_dir):
    run_dir.metrics_path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert len(read_metrics(run_dir.metrics_path)) == 1
    log = MetricsLog(run_dir)
    log.truncate_after(9)
    log.log(2, {"loss": 0.25})
    log.close()
    assert [row["step"] for row in read_metrics(run_dir.metrics_path)] == [1, 2]


@pytest.mark.fault("Records and checkpoints", "a line of the metrics is no JSON", "an error that names file and line")
def test_a_broken_line_is_named_by_file_and_number(run_dir):
    run_dir.metrics_path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(AstuneError, match=r"metrics\.jsonl, line 2: not JSON"):
        read_metrics(run_dir.metrics_path)


def test_tensorboard_reads_the_scalars_and_drops_those_of_steps_run_again(run_dir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = log_with_tensorboard(run_dir)
    for step in range(1, 5):
        log.log(step, {"reward/mean": step / 4})
    log.close()
    log = log_with_tensorboard(run_dir)
    log.truncate_after(2)
    log.log(3, {"reward/mean": 0.125})
    log.close()
    events = EventAccumulator(str(run_dir.path / "tensorboard"))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert points == [(1, 0.25), (2, 0.5), (3, 0.125)]


def test_tensorboard_events_are_written_without_torch_or_tensorflow_and_quietly(run_dir):
    program = (
        "import sys; from pathlib import Path; from astune.monitor import RunDir\n"
        "from tests.monitor.tensorboard import log_with_tensorboard\n"
        "log = log_with_tensorboard(RunDir(Path(sys.argv[1]))); log.log(1, {'loss': 0.5}); log.close()\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run_dir.path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
