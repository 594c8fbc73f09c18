"""The adapter for AppWorld, against a stand-in for the package: what it says, does and leaves behind.

The stand-in has the names, arguments and results of appworld 0.1.3.post1 that the adapter uses. It is imported by the
worker's process alone, which is a real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astune.environment.environment_base import Action, ToolCall
from astune.errors import ConfigError, MissingDependency, TaskError
from astune.worlds.appworld import SPLITS, AppWorldEnvironment, AppWorldError, AppWorldInstance, code_of
from tests.rows import each_row

PACKAGE = """
import contextlib, io, os
from collections import namedtuple

__version__ = "0.0"
print("noise while it is imported")

Person = namedtuple("Person", "first_name last_name email phone_number")
Described = namedtuple("Described", "instruction supervisor datetime app_descriptions")
Tests = namedtuple("Tests", "passes failures num_tests")


def load_task_ids(dataset_name="train", difficulty=None, num_tasks_per_scenario=None, only_tagged=None):
    with open(os.path.join(os.environ["APPWORLD_ROOT"], "data", "datasets", dataset_name + ".txt")) as file:
        return file.read().split()


class AppWorld:
    def __init__(self, task_id, experiment_name="default", timeout_seconds=100):
        print("noise while a world is made")
        self.folder = os.path.join(os.environ["APPWORLD_ROOT"], "experiments", "outputs", experiment_name)
        os.makedirs(self.folder)
        self.shell = {"answers": [], "timeout_seconds": timeout_seconds}
        person = Person("Ada", "Berg", "ada@post.example", "555")
        self.task = Described(f"Do {task_id}.", person, "2023-05-18 12:00:00", {"todo": "Lists."})

    def execute(self, code):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.shell)
        return printed.getvalue() or "Execution successful."

    def task_completed(self):
        return bool(self.shell["answers"])

    def evaluate(self, suppress_errors=True):
        checks = {"the answer is 42": self.shell["answers"] == [42], "nothing was changed": True}
        found = {holds: [{"requirement": name} for name in checks if checks[name] is holds] for holds in (True, False)}
        return Tests(found[True], found[False], len(checks))
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stand-in, which the worker finds."""
    apps = tmp_path / "packages" / "appworld" / "apps" / "supervisor"
    apps.mkdir(parents=True)
    (apps / "constants.py").write_text("")
    (apps.parents[1] / "__init__.py").write_text(PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    return tmp_path / "packages"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("data/datasets", "data/tasks/abc_1", "data/tasks/abc_2"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    (tmp_path / "root" / "data" / "datasets" / "dev.txt").write_text("abc_1\nabc_2\n")
    return tmp_path / "root"


@pytest.fixture
def instance(packages: Path, root: Path):
    made = AppWorldEnvironment(sys.executable, str(root)).create("abc_1", {})
    yield made
    made.close()


def run(instance: AppWorldInstance, code: str) -> tuple[str, bool]:
    told = instance.step(Action(code))
    return told.messages[0]["content"], told.done


def alive(instance: AppWorldInstance) -> bool:
    try:
        os.kill(instance.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_split_has_the_ids_that_the_package_says(packages, root) -> None:
    environment = AppWorldEnvironment(sys.executable, str(root))
    assert environment.task_ids("dev") == ("abc_1", "abc_2")
    (root / "data" / "datasets" / "dev.txt").unlink()
    assert environment.task_ids("dev") == ("abc_1", "abc_2")  # asked for once
    with pytest.raises(TaskError, match=r"no split 'tran'\. Did you mean 'train'\? It has: train, dev, test_normal"):
        environment.task_ids("tran")
    assert SPLITS == ("train", "dev", "test_normal", "test_challenge")


def test_the_agent_is_told_who_asks_for_what(instance) -> None:
    system, user = instance.first_messages()
    assert user == {"role": "user", "content": "Do abc_1."}
    for part in ("Ada Berg (ada@post.example, 555)", "2023-05-18", "apis.supervisor.complete_task()"):
        assert part in system["content"]


def test_code_is_run_in_a_shell_that_lasts(instance) -> None:
    assert run(instance, "x = 6") == ("Execution successful.", False)
    assert run(instance, "I multiply.\n```python\nprint(7 * x)\n```\nThen I am done.") == ("42\n", False)
    assert instance.evaluate() == 0.5
    assert run(instance, "answers.append(42)") == ("Execution successful.", True)
    assert instance.evaluate() == 1.0


def test_code_may_come_as_tool_calls_which_are_answered_each(instance) -> None:
    calls = ({"code": "print(1)"}, {"program": "print(2)"}, {"code": "answers.append(0)"}, {"code": "print(3)"})
    told = instance.step(Action(tool_calls=tuple(ToolCall(str(n), "execute", one) for n, one in enumerate(calls))))
    assert [one["tool_call_id"] for one in told.messages] == ["0", "1", "2", "3"] and told.done
    contents = [one["content"] for one in told.messages]
    assert contents[::2] == ["1\n", "Execution successful."]
    assert contents[1].startswith("Error: call execute") and contents[3].startswith("Error: the task has ended")
    assert [tool["function"]["name"] for tool in instance.tools] == ["execute"]


@each_row(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\na\n```", "a\n"),
        ("Look:\n```py\na\n```\nand\n```\nb\n```", "a\n"),
        ("```\na = '''x'''\n```", "a = '''x'''\n"),
        ("```python\na", "```python\na"),
    ],
)
def test_the_first_block_is_the_code(text: str, code: str) -> None:
    assert code_of(text) == code


@pytest.mark.parametrize(("score", "expected"), [("share", [0.5, 1.0]), ("all", [0.0, 1.0])])
def test_the_score_is_a_share_of_tests_or_all_or_nothing(packages, root, score, expected) -> None:
    instance = AppWorldEnvironment(sys.executable, str(root), score=score).create("abc_1", {})
    before = instance.evaluate()
    run(instance, "answers.append(42)")
    assert [before, instance.evaluate()] == expected
    instance.close()


def test_instances_share_nothing_and_leave_nothing(packages, root) -> None:
    environment = AppWorldEnvironment(sys.executable, str(root), code_timeout=7)
    first, second = (environment.create("abc_1", {}) for _ in range(2))
    run(first, "answers.append(42)")
    assert (first.evaluate(), second.evaluate()) == (1.0, 0.5)
    assert run(second, "print(timeout_seconds)")[0] == "7\n"
    outputs = root / "experiments" / "outputs"
    assert len(list(outputs.iterdir())) == 2
    first.close()
    first.close()  # once more does nothing
    assert (alive(first), alive(second), len(list(outputs.iterdir()))) == (False, True, 1)
    second.close()
    assert not alive(second) and list(outputs.iterdir()) == []


def test_what_the_code_prints_or_reads_does_not_disturb_the_protocol(instance) -> None:
    noisy = (
        "import os, sys\nos.write(1, b'{\"data\": 1}\\n')\nprint(1, file=sys.__stdout__)\nprint(repr(sys.stdin.read()))"
    )
    assert run(instance, noisy) == ("''\n", False)
    assert run(instance, "print('\u2028é\\n{}')") == ("\u2028é\n{}\n", False)


def test_what_the_package_raises_is_a_fault_with_its_place(instance) -> None:
    with pytest.raises(AppWorldError, match=r"(?s)ZeroDivisionError: division by zero.*in execute"):
        run(instance, "1 / 0")
    with pytest.raises(AppWorldError, match="SystemExit"):
        run(instance, "raise SystemExit(3)")
    assert run(instance, "print(1)") == ("1\n", False)  # the world is still there


def test_a_process_that_dies_is_an_error_with_its_last_words(instance) -> None:
    with pytest.raises(AppWorldError, match=r"(?s)it ended \(exit status 3\)\. Its last words: .*no more"):
        run(instance, "import os, sys\nprint('no more', file=sys.stderr, flush=True)\nos._exit(3)")
    with pytest.raises(AppWorldError, match="it ended"):
        instance.evaluate()


@pytest.mark.fault("Tools and environments", "code of an agent never ends", "its process is killed in time")
def test_a_process_that_hangs_is_killed_in_time(packages, root) -> None:
    instance = AppWorldEnvironment(sys.executable, str(root), code_timeout=1).create("abc_1", {})
    instance.limit = 0.3
    with pytest.raises(AppWorldError, match=r"execute took longer than 0\.3 s \(exit status -9\)"):
        run(instance, "import time; time.sleep(600)")
    assert not alive(instance)
    instance.close()


def test_the_process_ends_when_the_service_is_killed(packages, root, tmp_path) -> None:
    """Its input is closed by the system then."""
    service = tmp_path / "service.py"
    service.write_text(
        "import os, sys, time\n"
        "from astune.worlds.appworld import AppWorldEnvironment\n"
        f"print(AppWorldEnvironment(sys.executable, {str(root)!r}).create('abc_1', {{}}).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join([str(packages), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(service)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(f"/proc/{worker}/cmdline").exists() and Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("task_id", ["abc_3", "../tasks/abc_1", ""])
def test_a_task_that_is_not_there(packages, root, task_id: str) -> None:
    environment = AppWorldEnvironment(sys.executable, str(root))
    with pytest.raises(TaskError, match=f"appworld has no task '{task_id}'"):
        environment.create(task_id, {})


def test_a_world_that_cannot_be_made_leaves_no_process(packages, root, monkeypatch) -> None:
    made: list[Any] = []
    environment = AppWorldEnvironment(sys.executable, str(root))
    start = environment._start
    monkeypatch.setattr(environment, "_start", lambda: made.append(start()) or made[-1])
    (root / "experiments").write_text("a file where a folder should be")
    with pytest.raises(AppWorldError, match="NotADirectoryError"):
        environment.create("abc_1", {})
    (process,) = made
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_what_is_missing_is_said_with_the_command_that_helps(packages, root, tmp_path, monkeypatch) -> None:
    bin_folder = Path(sys.executable).parent
    with pytest.raises(ConfigError, match=r"no program nowhere/python\. To make one: python3.11 -m venv"):
        AppWorldEnvironment("nowhere/python", str(root))
    with pytest.raises(ConfigError, match="root: there is no folder"):
        AppWorldEnvironment(sys.executable, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="score: expected 'share' or 'all', got 'half'"):
        AppWorldEnvironment(sys.executable, str(root), score="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"/false cannot run it\. AppWorld's process said: it ended"):
        AppWorldEnvironment("false", str(root))
    chatty = tmp_path / "chatty"
    chatty.write_text("#!/bin/sh\nread line\necho hello\n")
    chatty.chmod(0o755)
    with pytest.raises(ConfigError, match=r"cannot run it\. AppWorld's process said: it answered 'hello"):
        AppWorldEnvironment(str(chatty), str(root))
    (root / "data" / "tasks").rename(root / "data" / "gone")
    missing = f"its data are not in {root}. Run: {bin_folder}/appworld download data --root {root}"
    with pytest.raises(MissingDependency, match=missing):
        AppWorldEnvironment(sys.executable, str(root))
    (packages / "appworld" / "apps" / "supervisor" / "constants.py").unlink()
    with pytest.raises(MissingDependency, match=f"apps are not unpacked. Run: {bin_folder}/appworld install"):
        AppWorldEnvironment(sys.executable, str(root))
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(MissingDependency, match=r"cannot import appworld.*pip install appworld.*No module named"):
        AppWorldEnvironment(sys.executable, str(root))
