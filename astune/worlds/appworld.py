"""`AppWorldEnvironment`: the tasks of the AppWorld benchmark (Trivedi et al. 2024, https://arxiv.org/abs/2407.18901).

AppWorld 0.1 wants pydantic 1 and httpx before 0.28, so it cannot live in the environment that ASTune is installed in.
It gets one of its own:

    python3.11 -m venv appworld-env
    appworld-env/bin/pip install appworld
    appworld-env/bin/appworld install                                # unpacks its apps
    appworld-env/bin/appworld download data --root appworld-data     # tasks and databases

    astune env serve --env appworld --option python=appworld-env/bin/python --option root=appworld-data

Each instance is a process of that interpreter, because AppWorld freezes the clock and keeps its databases in global
variables. Starting one takes 10 to 20 seconds of a core. The agent's code runs in it, behind AppWorld's own guard; that
is no sandbox, so serve it from a container.

Run against appworld 0.1.3.post1 (Python 3.11): installing it, what is said when something is missing, and two worlds at
once of one task that we made by hand with its own classes, from `create` to a score of 1. Never run: the benchmark's
tasks, because its data could not be downloaded where this was written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from astune.environment.environment_base import Action, Environment, Instance, Message, Observation, function_tool
from astune.errors import ConfigError, MissingDependency, TaskError, nearest
from astune.support.http.child_server import pipe, stop_child

WORKER = Path(__file__).with_name("appworld_worker.py")
SECONDS_TO_END = 10.0
"""For a process whose input was closed, before it is killed."""


class AppWorldError(Exception):
    """The words of a process that answered no data, or the way in which it died."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AppWorldProcess:
    """A worker process. Not for two threads at once."""

    def __init__(self, python: str, root: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        environment |= {"APPWORLD_ROOT": str(root), "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "ignore"}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        self._late = False
        self._process = subprocess.Popen(
            [python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=root,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the service, which ends its instances itself
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any], limit: float) -> Any:
        """The data of the answer. Raises `AppWorldError`; one that takes longer than `limit` seconds is killed."""
        given, answers = pipe(self._process.stdin), pipe(self._process.stdout)
        timer = threading.Timer(limit, self._give_up)
        timer.start()
        try:
            given.write(json.dumps(request) + "\n")
            given.flush()
            line = answers.readline()
        except (BrokenPipeError, ValueError):  # ValueError: stopped before
            line = ""
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            raise self._death(f"{request['call']} took longer than {limit:g} s" if self._late else "it ended")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._death(f"it answered {line!r:.200}") from None
        if "error" in answer:
            raise AppWorldError(answer["error"]["code"], answer["error"]["message"])
        return answer["data"]

    def stop(self) -> None:
        """Ends it, at first by closing its input. Doing so again does nothing."""
        if not self._said.closed:
            stop_child(self._process, SECONDS_TO_END)
            self._said.close()

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def _death(self, how: str) -> AppWorldError:
        self._process.kill()
        status = self._process.wait()
        if self._said.closed:
            return AppWorldError("dead", "the process was stopped before")
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip()[-800:]
        return AppWorldError("dead", f"{how} (exit status {status}). Its last words: {last or 'none'}")


SPLITS = ("train", "dev", "test_normal", "test_challenge")
TOOLS = (
    function_tool(
        "execute",
        "Run Python code in the task's shell, which keeps its variables. You see what the code prints.",
        {"code": {"type": "string", "description": "Python code"}},
    ),
)
RULES = """\
You are the assistant of {supervisor} and do what they ask with their apps, by writing Python code, step by step. \
Each step is run in a shell that keeps its variables, and you see what it prints. `apis` is there already:

print(apis.api_docs.show_app_descriptions())                                   # the apps
print(apis.api_docs.show_api_descriptions(app_name="spotify"))                 # the APIs of an app
print(apis.api_docs.show_api_doc(app_name="spotify", api_name="login"))        # what an API takes and returns
print(apis.supervisor.show_account_passwords())                                # for the apps' logins

Lists come in pages: look at all of them. Call apis.supervisor.complete_task() when the task is done, with the \
argument answer=... if it asks for one. Nobody can be asked back. It is {datetime}."""
_INSTALL = "python3.11 -m venv appworld-env && appworld-env/bin/pip install appworld"
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class AppWorldEnvironment(Environment):
    """Args:
    python: interpreter of the virtual environment that has `appworld`.
    root: the folder with AppWorld's `data`; it writes each world to `experiments/outputs`, which is removed again.
    score: `share` of the task's tests that pass, or `all`: 1 if every one does, else 0, as the benchmark counts.
    code_timeout: seconds that one piece of code may run; AppWorld tells the agent when it took longer.
    start_timeout: seconds that a process may take to load AppWorld and make a world.

    Raises `ConfigError` or `MissingDependency` with the command that helps, when `python`, the package or the data are
    not there.
    """

    env_type = "appworld"
    executes_code = True

    def __init__(
        self,
        python: str,
        root: str,
        score: Literal["share", "all"] = "share",
        code_timeout: int = 100,
        start_timeout: float = 120.0,
    ) -> None:
        if score not in ("share", "all"):
            raise ConfigError(f"appworld: score: expected 'share' or 'all', got {score!r}")
        self._python = shutil.which(Path(python).expanduser())
        if self._python is None:
            raise ConfigError(f"appworld: python: there is no program {python}. To make one: {_INSTALL}")
        self._root = Path(root).expanduser().absolute()
        if not self._root.is_dir():
            raise ConfigError(f"appworld: root: there is no folder {self._root}")
        self._score, self._code_timeout, self._start_timeout = score, code_timeout, start_timeout
        self._ids: dict[str, tuple[str, ...]] = {}
        self._ask_once({"call": "check"})

    def task_ids(self, split: str) -> Sequence[str]:
        if split not in SPLITS:
            raise TaskError(f"appworld has no split {split!r}.{nearest(split, SPLITS)} It has: {', '.join(SPLITS)}")
        if split not in self._ids:
            self._ids[split] = tuple(self._ask_once({"call": "task_ids", "split": split}))
        return self._ids[split]

    def create(self, task_id: str, params: Mapping[str, Any]) -> AppWorldInstance:
        if not re.fullmatch(r"\w+", task_id) or not (self._root / "data" / "tasks" / task_id).is_dir():
            raise TaskError(f"appworld has no task {task_id!r}: nothing is at {self._root}/data/tasks/{task_id}")
        return AppWorldInstance(
            self._start(), task_id, self._root, self._score, self._code_timeout, self._start_timeout
        )

    def _start(self) -> AppWorldProcess:
        assert self._python is not None
        return AppWorldProcess(self._python, self._root)

    def _ask_once(self, request: Mapping[str, Any]) -> Any:
        """The answer of a process that ends afterwards."""
        process = self._start()
        try:
            return process.ask(request, self._start_timeout)
        except AppWorldError as error:
            raise self._explain(error) from error
        finally:
            process.stop()

    def _explain(self, error: AppWorldError) -> Exception:
        said, folder = f"AppWorld's process said: {error}", Path(str(self._python)).parent
        if error.code == "no_package":
            return MissingDependency(
                f"appworld: {self._python} cannot import appworld. Name the interpreter of an environment that has it "
                f"in option python, or make one: {_INSTALL}. {said}"
            )
        if error.code == "no_apps":
            return MissingDependency(f"appworld: its apps are not unpacked. Run: {folder}/appworld install. {said}")
        if error.code == "no_data":
            return MissingDependency(
                f"appworld: its data are not in {self._root}. Run: {folder}/appworld download data --root "
                f"{self._root}. {said}"
            )
        return ConfigError(f"appworld: {self._python} cannot run it. {said}")


class AppWorldInstance(Instance):
    """One process with one world. An action is code: a text, the first ```python block of one, or the tool's."""

    tools = TOOLS

    def __init__(
        self, process: AppWorldProcess, task_id: str, root: Path, score: str, code_timeout: int, start_timeout: float
    ) -> None:
        self._process, self._score = process, score
        self.limit = code_timeout + start_timeout
        """Seconds after which a call of the process is given up: AppWorld's own limit comes first."""
        experiment = f"astune-{uuid.uuid4().hex}"  # two worlds of one task would write to one folder
        self._folder = root / "experiments" / "outputs" / experiment
        request = {"call": "create", "task_id": task_id, "experiment": experiment, "code_timeout": code_timeout}
        try:
            self._about = process.ask(request, start_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_messages(self) -> Sequence[Message]:
        person = self._about["supervisor"]
        name = f"{person['first_name']} {person['last_name']} ({person['email']}, {person['phone_number']})"
        rules = RULES.format(supervisor=name, datetime=self._about["datetime"])
        return ({"role": "system", "content": rules}, {"role": "user", "content": self._about["instruction"]})

    def step(self, action: Action) -> Observation:
        if not action.tool_calls:
            output, done = self._execute(code_of(action.text))
            return Observation(({"role": "user", "content": output},), done=done)
        messages, done = [], False
        for one in action.tool_calls:
            code = one.arguments.get("code")
            if one.name != "execute" or not isinstance(code, str):
                output = f"Error: call execute with a text as code, not {one.name} with {dict(one.arguments)!r:.200}"
            elif done:
                output = "Error: the task has ended; this was not run"
            else:
                output, done = self._execute(code_of(code))
            messages.append({"role": "tool", "tool_call_id": one.id, "content": output})
        return Observation(tuple(messages), done=done)

    def evaluate(self) -> float:
        result = self._process.ask({"call": "evaluate"}, self.limit)
        share = len(result["passed"]) / max(1, int(result["tests"]))
        return share if self._score == "share" else float(share == 1)

    def close(self) -> None:
        self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _execute(self, code: str) -> tuple[str, bool]:
        result = self._process.ask({"call": "execute", "code": code}, self.limit)
        return str(result["output"]), bool(result["done"])


def code_of(text: str) -> str:
    """The first block of code in a text, or the text where there is none.

    >>> code_of("I look.\\n```python\\nprint(1)\\n```")
    'print(1)\\n'
    """
    found = _CODE.search(text)
    return found[1] if found else text
