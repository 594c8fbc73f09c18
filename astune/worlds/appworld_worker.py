"""One AppWorld world in a process of its own. Runs under the interpreter that has `appworld`, without ASTune.

    PYTHON appworld_worker.py        # APPWORLD_ROOT in the environment

Each line of the standard input is a request, as `{"call": "task_ids", "split": "train"}`; each gets one line on the
standard output, `{"data": ...}` or `{"error": {"code": ..., "message": ...}}`. What AppWorld or the agent's code
prints goes to the standard error, and what they read is empty. The process ends when its input does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO


class Refused(Exception):
    """An error that the other side is to know of, with a code that it understands."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Worker:
    """Answers requests; `create` makes its one world."""

    def __init__(self) -> None:
        self.world: Any = None

    def answer(self, request: dict[str, Any]) -> Any:
        arguments = {name: value for name, value in request.items() if name != "call"}
        calls: dict[str, Callable[..., Any]] = {
            "check": check,
            "task_ids": task_ids,
            "create": self.create,
            "execute": self.execute,
            "evaluate": self.evaluate,
        }
        return calls[request["call"]](**arguments)

    def create(self, task_id: str, experiment: str, code_timeout: int) -> dict[str, Any]:
        """Create a world; return what the agent is told of the task. `experiment` names the folder of this world."""
        appworld = load()
        self.world = appworld.AppWorld(task_id=task_id, experiment_name=experiment, timeout_seconds=code_timeout)
        task = self.world.task
        names = ("first_name", "last_name", "email", "phone_number")
        return {
            "instruction": task.instruction,
            "supervisor": {name: str(getattr(task.supervisor, name)) for name in names},
            "datetime": str(task.datetime),
            "apps": dict(task.app_descriptions),
        }

    def execute(self, code: str) -> dict[str, Any]:
        """Run code; returns what it printed, or its traceback, as the agent is to see it."""
        return {"output": str(self.world.execute(code)), "done": bool(self.world.task_completed())}

    def evaluate(self) -> dict[str, Any]:
        tests = self.world.evaluate()
        passed = [one["requirement"] for one in tests.passes]
        failed = [one["requirement"] for one in tests.failures]
        return {"passed": passed, "failed": failed, "tests": tests.num_tests}


def load() -> Any:
    """The package, which loads its apps only when a world is made: these are looked for here."""
    try:
        appworld = importlib.import_module("appworld")
    except ImportError as error:
        raise Refused("no_package", f"{type(error).__name__}: {error}") from error
    try:
        importlib.import_module("appworld.apps.supervisor.constants")
    except ImportError as error:
        raise Refused("no_apps", f"{type(error).__name__}: {error}") from error
    return appworld


def check() -> dict[str, str]:
    """The version; refused where package, apps or data are missing."""
    appworld = load()
    folder = os.path.join(os.environ["APPWORLD_ROOT"], "data")
    for name in ("datasets", "tasks"):
        if not os.path.isdir(os.path.join(folder, name)):
            raise Refused("no_data", f"there is no {os.path.join(folder, name)}")
    return {"version": str(appworld.__version__)}


def task_ids(split: str) -> list[str]:
    return [str(one) for one in load().load_task_ids(split)]


@contextlib.contextmanager
def own_channels() -> Iterator[tuple[TextIO, TextIO]]:
    """The input and output that this process was started with, which nobody else in it can reach any more."""
    with os.fdopen(os.dup(0), encoding="utf-8") as lines, os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        yield lines, answers


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]  # beside this file is another appworld.py
    worker = Worker()
    with own_channels() as (lines, answers):
        for line in lines:
            try:
                answer = {"data": worker.answer(json.loads(line))}
            except Refused as refused:
                answer = {"error": {"code": refused.code, "message": str(refused)}}
            except BaseException as error:  # whatever it is, the other side is to know it
                last = traceback.format_exc(limit=-3)
                answer = {"error": {"code": "failed", "message": f"{type(error).__name__}: {error}\n{last}"}}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # AppWorld leaves threads behind that an ordinary end waits for
