"""What a command leaves in `run.log` and `logs/`, and what it leaves alone."""

import json
import logging
import multiprocessing
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import loguru
import pytest

from astune.backbone.debug import DebugBackbone
from astune.cli import main
from astune.config.load import load_config
from astune.support import run_log
from astune.support.file_kinds import Kind, kind_of
from astune.support.run_log import ROLE, command_log, open_log
from astune.support.terminal import Console
from astune.testing import ScriptedChatServer

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).with_name("logging_agents.py")
SECRET = "sk-test-0123456789"
JOB = """\
astune:
  backbone: astune.testing:ScriptedBackbone
  project_name: p
  task_reader: {jsonl: {training: {file_path: train.jsonl}}, shuffle: false}
  rollout: {num_repeat: 3, max_tokens: 4}
  trainer: {total_steps: 2, tasks_per_step: 1, save_every: 1}
  monitor: {progress: plain, trackers: []}
"""
RUN = Path("runs/p/job")
Astune = Callable[..., str]


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    Path("train.jsonl").write_text('{"query": "1?", "answer": "4"}\n{"query": "2?", "answer": "4"}\n')


@pytest.fixture
def astune(monkeypatch: pytest.MonkeyPatch) -> Iterator[Astune]:
    """`astune("speaks", "--log-level", "debug")` runs the job with that agent, in a process of its own, and is what the
    terminal shows."""
    with ScriptedChatServer(lambda _: "Hello") as server:
        monkeypatch.setenv("LOG_TEST_URL", server.base_url)
        monkeypatch.setenv("LOG_TEST_KEY", SECRET)

        def astune(name: str, *arguments: str, code: int = 0) -> str:
            command = [sys.executable, "-m", "astune", "--conf", "job.yaml", agent(name), *arguments]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        yield astune


def agent(name: str) -> str:
    return f"astune.rollout.agentscope_learn_protocol={AGENTS}:{name}"


def said(name: str = "run.log") -> str:
    return (RUN / name).read_text(encoding="utf-8")


def test_a_run_is_told_from_its_beginning_to_its_exit_code(astune: Astune) -> None:
    shown = astune("speaks")
    text = said()
    first, *_, last = text.splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert re.fullmatch(
        rf"{time} \| INFO     \| run \| astune\.command:open:\d+ - astune .* works in {RUN.absolute()}: .*", first
    )
    assert last.endswith(" - exit code 0")
    for line in (
        "no held-out tasks are configured",  # before there was a folder or after, notes are in it
        "step 1/2  reward 0.667",
        "0] mine: \\u001b[2Jwarning",
        "0] mine: loguru",
        "UserWarning: mine: warned",
        "0] mine: deaf",
        "ValueError: mine: raised",
        ": workflow: KeyError: 'mine: price'",
        "completed after step 2",
    ):
        assert line in text, line
    assert " | WARNING  | run | _astune_plugin_" in text and "logging_agents:speaks:" in text
    assert "debug" not in text and "HTTP Request" not in text
    assert shown.count("mine: \\u001b[2Jwarning") == 6 and " | INFO" not in shown, "the terminal is as without a log"


def test_the_level_is_that_of_astune_and_the_users_code_and_no_key_is_ever_logged(astune: Astune) -> None:
    shown = astune("speaks", "--log-level", "debug")
    assert "mine: debug" in shown and "mine: debug" in said()
    assert re.search(r"DEBUG .* train/1/\w+/0: completed, reward 1\.0", said())
    for text in (shown, said()):
        assert SECRET not in text and "HTTP Request" not in text and "headers" not in text


def test_a_level_that_there_is_not_is_an_error_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--conf", "job.yaml", "--log-level", "inof"])
    assert "got 'inof', expected one of debug, info, warning, error. Did you mean 'info'?" in capsys.readouterr().err


def test_a_resumed_run_goes_on_in_its_file_and_each_worker_has_one_in_json_too() -> None:
    options = [agent("brief"), "astune.monitor.log_json=true", "astune.rollout.workers=1"]
    assert main(["--conf", "job.yaml", *options, "astune.trainer.total_steps=1"]) == 0
    before = said()
    assert main(["--conf", "job.yaml", *options, "--resume"]) == 0
    assert said().startswith(before)
    rows = [json.loads(line) for line in said().splitlines()]
    assert set(map(kind_of, rows)) == {Kind.LOG}
    assert [row["message"] for row in rows if row["name"] == "astune.command"][1::2] == ["exit code 0"] * 2
    (failed, *_) = (row for row in rows if row["message"] == "mine: failed")
    assert failed["exception"].endswith("\nValueError: mine: raised")
    assert (failed["level"], failed["process"], failed["episode"][:8]) == ("ERROR", "worker-0", "train/1/")
    assert failed["time"][10] == "T" and failed["time"] >= rows[0]["time"]
    worker = [json.loads(line) for line in said("logs/worker-0.log").splitlines()]
    assert {row["process"] for row in worker} == {"worker-0"} and failed in worker
    assert [row for row in rows if row["process"] == "worker-0"] == [row for row in worker if row["level"] != "INFO"]
    assert {row["level"] for row in worker} == {"INFO", "ERROR"}


@pytest.mark.fault("What a run says", "a run is killed (SIGKILL)", "`run.log` has all that was said before")
def test_a_killed_run_has_said_all_it_had_to_say(astune: Astune) -> None:
    shown = astune("killed", "--log-level", "ERROR", code=-9)
    assert "the last words" not in shown, "the terminal has what was asked for, the file what a run needs"
    assert said().endswith("the last words\n") and "step 1/2" in said()


@pytest.mark.fault("What a run says", "`run.log` cannot be written", "the terminal says so once, and the run goes on")
def test_a_log_that_finds_no_room_is_said_once_and_stops_nothing(astune: Astune) -> None:
    assert main(["--conf", "job.yaml", agent("answered"), "astune.trainer.total_steps=1"]) == 0
    (RUN / "run.log").unlink()
    (RUN / "run.log").symlink_to("/dev/full")
    shown = astune("answered", "--resume")
    (line,) = (line for line in shown.splitlines() if "run.log" in line)
    assert line.endswith("run.log cannot be written ([Errno 28] No space left on device): all goes on without it")
    assert "step 2/2" in shown and "Traceback" not in shown


def test_an_agent_that_sets_up_logging_has_it_and_the_log_goes_on(astune: Astune) -> None:
    shown = astune("sets_up_logging")
    assert shown.count("own: after basicConfig") == said().count("after basicConfig") == 6
    assert said().endswith("exit code 0\n") and "own: step" not in shown


def test_a_run_that_never_began_leaves_nothing_behind() -> None:
    Path("answers.py").write_text("def speak(request):\n    return '4'\n")
    overrides = [agent("NeverBegins"), "astune.debug.model=scripted:answers.py:speak"]
    assert main(["--conf", "job.yaml", "--backbone=debug", *overrides]) == 1
    assert not RUN.with_name("job-debug").exists()


def logging_of_the_process() -> object:
    """All that somebody who imports ASTune may have set up."""
    names = logging.root, logging.getLogger("astune")
    handlers = [(logger.level, logger.propagate, list(logger.handlers)) for logger in names]
    return repr(loguru.logger), handlers, logging.Logger.callHandlers, warnings.showwarning, logging.lastResort


def test_whoever_imports_astune_keeps_their_own_logging() -> None:
    before = logging_of_the_process()
    Path("answers.py").write_text("def speak(request):\n    return '4'\n")
    overrides = [
        f"astune.rollout.agentscope_learn_protocol={ROOT}/tests/training/agents.py:quick",
        "astune.debug.model=scripted:answers.py:speak",
    ]
    report = DebugBackbone(Console(file=StringIO())).run(load_config(Path("job.yaml"), overrides, backbone="debug"))
    assert report.status == "completed" and not (report.run_dir / "run.log").exists()
    assert logging_of_the_process() == before
    with command_log(logging.DEBUG):
        open_log(Path("folder"), as_json=False)
        assert logging_of_the_process() != before
    assert logging_of_the_process() == before


def test_files_are_put_aside_and_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "ROTATED_AT", 1000)
    logger, folder = logging.getLogger("astune.x"), Path("a {strange} folder")

    def speak(worker: int, times: int) -> None:
        for number in range(times):
            logger.info("%s", f"line {number} " + "x" * 80, extra={ROLE: f"worker-{worker}"})

    with command_log(None):
        open_log(folder, as_json=False)
        speak(10, 1)
        speak(1, 200)
        child = multiprocessing.get_context("fork").Process(target=speak, args=(1, 20))
        child.start()
        child.join()
        logger.info("and the parent goes on", extra={ROLE: "worker-1"})
    files = [path.name for path in (folder / "logs").iterdir()]
    assert len([name for name in files if name.startswith("worker-1.")]) == 1 + run_log.KEPT
    assert "worker-10.log" in files
    newest = (folder / "logs" / "worker-1.log").read_text()
    assert "line 19 " in newest and newest.endswith("and the parent goes on\n")
    assert "worker" not in (folder / "run.log").read_text()
