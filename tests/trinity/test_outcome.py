"""Success is read from Trinity's state files and the reason of a failure from its logs, as Trinity writes them."""

import inspect
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.trinity.driver.outcome import ENDS_THE_RUN, SHUT_DOWN, LogWatch, StepsReached, steps_reached
from tests.rows import each_row

NEEDED = "make test-trinity installs it"


# ---- How far ----


def test_a_run_that_wrote_nothing_came_nowhere(tmp_path: Path) -> None:
    assert steps_reached(tmp_path) == steps_reached(tmp_path / "absent") == StepsReached(0, 0)


def test_the_steps_are_those_that_trinity_wrote_down(tmp_path: Path) -> None:
    pytest.importorskip("trinity", reason=NEEDED)
    from trinity.manager.state_manager import StateManager

    state = StateManager(str(tmp_path), trainer_name="trainer", explorer_name="explorer")
    state.save_explorer(7, [{"current_index": 56}])
    state.save_trainer(5, {"batch": 6})
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    assert steps_reached(tmp_path) == StepsReached(train_steps=5, checkpoint_step=4)


@each_row("written", ["", "{", '{"latest_iteration": 1', "[]", "null", '{"latest_iteration": null}', "{}"])
def test_a_half_written_state_counts_as_none(tmp_path: Path, written: str) -> None:
    for name in ("explorer_meta.json", "trainer_meta.json", "latest_checkpointed_iteration.txt"):
        (tmp_path / name).write_text(written)
    assert steps_reached(tmp_path) == StepsReached(0, 0)


# ---- Records ----


def record(text: str, *, level: str = "ERROR", at: str = "11-21 10:09:09", place: str = "trainer.py:156") -> str:
    """What Trinity's formatter makes of a message: each line has the prefix, CR LF between them, LF at the end."""
    prefix = f"{level} {at} [{place}] "
    return prefix + text.replace("\n", f"\r\n{prefix}") + "\n"


def raised(name: str, message: str = "") -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    f()\n{name}: {message}\n'


def write(path: Path, *records: str) -> None:
    with path.open("a", newline="") as file:
        file.writelines(records)


def test_a_record_is_read_as_it_was_before_the_formatter(tmp_path: Path) -> None:
    pytest.importorskip("trinity", reason=NEEDED)
    import logging

    from trinity.utils.log import _LOG_DATE_FORMAT, _LOG_FORMAT, NewLineFormatter

    message = "Error in Trainer:\n" + raised("KeyError", "'größe'\n  two: lines")
    watch = LogWatch(tmp_path)
    handler = logging.FileHandler(tmp_path / "trainer.log", encoding="utf-8")
    handler.setFormatter(NewLineFormatter(_LOG_FORMAT, _LOG_DATE_FORMAT))
    handler.emit(logging.LogRecord("trinity", logging.INFO, "trainer.py", 1, "Sample data", None, None))
    handler.emit(logging.LogRecord("trinity", logging.ERROR, "trainer.py", 156, message, None, None))
    handler.close()
    error = watch.last_error()
    assert error is not None
    assert (error.actor, error.file, error.message) == ("trainer", tmp_path / "trainer.log", "Error in Trainer:")
    assert f"{error.message}\n{error.traceback}\n" == message
    assert abs((datetime.now() - error.time).total_seconds()) < 3600


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=6), st.data())
def test_an_error_is_told_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[bool, int]], data: st.DataObject
) -> None:
    errors = [record(f"Error in Trainer:\n{raised('E', str(n) * n)}") for _, n in kinds]
    texts = [error if bad else record("x", level="INFO") for error, (bad, _) in zip(errors, kinds, strict=True)]
    written = "".join(texts).encode()
    path = tmp_path_factory.mktemp("log") / "trainer.log"
    path.touch()
    watch = LogWatch(path.parent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=5)))
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        with path.open("ab") as file:
            file.write(written[start:end])
        found += watch.poll()
    assert [error.exception for error in found] == [f"E: {str(n) * n}" for bad, n in kinds if bad]
    assert watch.poll() == []


def test_only_what_ends_a_loop_of_trinity_stops_the_run(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    runner = record("WorkflowRunner run task error: no\nTraceback:\n" + raised("ValueError"))
    write(tmp_path / "explorer_runner_0.log", runner)
    write(tmp_path / "queue.log", record("Timeout when waiting for experience, only get 0 experiences."))
    write(tmp_path / "trainer.log", record("Error in Trainer:\n" + raised("KeyError"), level="INFO"))
    assert watch.poll() == []
    write(tmp_path / "explorer.log", record("Error during explorer preparation: " + raised("OSError")))
    (error,) = watch.poll()
    assert (error.actor, error.message) == ("explorer", "Error during explorer preparation:")


def test_logs_of_a_folder_per_node_are_read_too(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    (tmp_path / "10.0.0.1").mkdir()
    write(tmp_path / "10.0.0.1" / "trainer.log", record("Error in Trainer:\n" + raised("KeyError")))
    assert [error.actor for error in watch.poll()] == ["trainer"]


def test_what_an_earlier_run_wrote_is_not_this_runs_error(tmp_path: Path) -> None:
    write(tmp_path / "trainer.log", record("Error in Trainer:\n" + raised("KeyError")))
    watch = LogWatch(tmp_path)
    assert watch.poll() == []
    assert watch.last_error() is None
    write(tmp_path / "trainer.log", record("Error in Trainer:\n" + raised("IndexError")))
    assert [error.exception for error in watch.poll()] == ["IndexError: "]
    assert watch.last_error().exception == "IndexError: "


def test_a_time_of_december_that_is_read_in_january_is_of_last_year(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    write(tmp_path / "trainer.log", record("Error in Trainer:\n" + raised("KeyError"), at="12-31 23:59:58"))
    january = datetime(2027, 1, 1, 0, 0, 5).timestamp()
    os.utime(tmp_path / "trainer.log", (january, january))
    assert watch.last_error().time == datetime(2026, 12, 31, 23, 59, 58)


# ---- Whom to blame ----


def test_the_actor_that_failed_is_blamed_and_not_the_one_that_waited_for_it(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    write(tmp_path / "explorer.log", record("Error in Explorer: " + raised("TimeoutError"), at="11-21 10:00:00"))
    write(tmp_path / "trainer.log", record("Error in Trainer:\n" + raised("KeyError"), at="11-21 10:00:01"))
    assert watch.last_error().actor == "trainer"


def test_where_all_only_waited_the_newest_other_error_is_blamed(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    late = record("Error in Trainer:\n" + raised("TimeoutError"), at="11-21 11:00:00")
    write(tmp_path / "trainer.log", late)
    assert watch.last_error().exception == "TimeoutError: "
    for at, name in (("11-21 10:00:00", "OldError"), ("11-21 10:30:00", "NewError")):
        write(tmp_path / "explorer_runner_0.log", record("WorkflowRunner run task error: x\n" + raised(name), at=at))
    assert watch.last_error().exception == "NewError: "


def test_no_error_is_none(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    assert watch.last_error() is None
    assert LogWatch(tmp_path / "absent").last_error(tmp_path / "absent") is None
    write(tmp_path / "trainer.log", record("Trainer is ready.", level="INFO"))
    assert watch.last_error() is None


# ---- In real actors ----


def test_trinity_still_logs_what_is_looked_for() -> None:
    pytest.importorskip("trinity", reason=NEEDED)
    from trinity.explorer.explorer import Explorer
    from trinity.trainer.trainer import Trainer

    source = inspect.getsource(Explorer) + inspect.getsource(Trainer)
    assert [phrase for phrase in ENDS_THE_RUN if phrase not in source] == []


def actor(name: str, log_dir: Path) -> Any:
    """A process that logs as Trinity's actors do."""
    import ray

    class Actor:
        def __init__(self) -> None:
            from trinity.utils.log import get_logger

            self.logger = get_logger(name, in_ray_actor=True)

        def fail(self) -> None:
            import traceback

            try:
                {}["advantages"]
            except Exception:
                self.logger.error(f"Error in Trainer:\n{traceback.format_exc()}")

        def wait_for(self, other: Any) -> None:
            import traceback

            try:
                ray.get(other.crash.remote())
            except Exception:
                self.logger.error(f"Error in Explorer: {traceback.format_exc()}")

        def crash(self) -> None:
            import faulthandler

            faulthandler._sigsegv()

    environment = {"env_vars": {"TRINITY_LOG_DIR": str(log_dir)}}
    return ray.remote(Actor).options(num_cpus=0, runtime_env=environment).remote()


def test_a_trainer_that_raised_is_found_in_the_log_of_its_process(cluster: Any, tmp_path: Path) -> None:
    import ray

    watch = LogWatch(tmp_path)
    trainer = actor("trainer", tmp_path)
    ray.get(trainer.fail.remote())
    (error,) = watch.poll()
    assert (error.actor, error.exception, error.is_consequence) == ("trainer", "KeyError: 'advantages'", False)
    assert '{}["advantages"]' in error.traceback
    assert watch.last_error() == error


def test_an_explorer_that_was_shut_down_in_a_step_is_no_cause(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path)
    told = raised("RuntimeError", SHUT_DOWN).rstrip("\n")
    write(tmp_path / "explorer.log", record(f"Error in Explorer:\n{told}\n", at="11-21 10:09:09"))
    assert watch.last_error().is_consequence
    write(tmp_path / "trainer.log", record(f"Error in Trainer:\n{raised('KeyError')}", at="11-21 10:09:10"))
    assert watch.last_error().actor == "trainer"


def test_trinity_says_so_where_it_is_shut_down() -> None:
    pytest.importorskip("trinity", reason=NEEDED)
    from trinity.explorer.rollout_coordinator import RolloutCoordinator

    assert f'raise RuntimeError("{SHUT_DOWN}")' in inspect.getsource(RolloutCoordinator)


def test_a_process_that_died_is_found_in_rays_logs(cluster: Any, tmp_path: Path) -> None:
    import ray

    watch = LogWatch(tmp_path)
    explorer, trainer = actor("explorer", tmp_path), actor("trainer", tmp_path)
    ray.get(explorer.wait_for.remote(trainer))
    (waited,) = watch.poll()
    assert waited.is_consequence
    assert waited.exception.startswith("ray.exceptions.ActorDiedError")
    session = Path(cluster.head_node.get_session_dir_path())
    error = watch.last_error(session)
    assert error.traceback.startswith("Fatal Python error: Segmentation fault")
    assert "in crash" in error.traceback
    assert LogWatch(tmp_path).last_error(session) is None
