"""`astune env`."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from astune.cli import env, main
from astune.environment.registry import BUILT_IN
from astune.errors import ConfigError
from tests.rows import each_row

GOOD = """
import random, sqlite3, threading
from astune.environment import Action, Environment, Instance, Observation, function_tool
from astune.errors import TaskError

class Game(Instance):
    tools = [function_tool("guess", "Guess.", {"number": {"type": "integer"}})]
    def __init__(self, task_id):
        self.secret, self.steps = random.Random(task_id).randrange(10), []
    def first_messages(self):
        return [{"role": "user", "content": "Guess my number."}]
    def step(self, action):
        self.steps.append(action)
        said = [{"role": "tool", "tool_call_id": call.id, "content": self.answer(call)} for call in action.tool_calls]
        if action.text or not said:
            said.append({"role": "user", "content": "Use the tool."})
        return Observation(tuple(said))
    def answer(self, call):
        number = call.arguments.get("number")
        if call.name != "guess":
            return "no such tool"
        return "yes" if number == self.secret else f"no, at {len(self.steps)}"
    def evaluate(self):
        return len(self.steps) / 100

class Games(Environment):
    env_type = "games"
    def __init__(self, size: int = 5): self.size = size
    def task_ids(self, split):
        if split != "train":
            raise TaskError(split)
        return [str(number) for number in range(self.size)]
    def create(self, task_id, params):
        if not task_id.isdigit():
            raise TaskError(task_id)
        return Game(task_id)
"""


@pytest.fixture(autouse=True)
def _restore_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def written(folder: Path, code: str) -> str:
    path = folder / f"games{len(list(folder.iterdir()))}.py"
    path.write_text(code)
    return f"{path}:Games"


def test_a_good_environment_has_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = written(tmp_path, GOOD)
    assert main(["env", "check", spec, "--option", "size=2"]) == 0
    printed = capsys.readouterr().out
    assert "note" not in printed and "fault " not in printed
    assert "task_ids: 2 in split 'train'" in printed and "task '1': instances are apart" in printed
    assert printed.splitlines()[-1] == f"{spec}: no faults"


@pytest.mark.fault(
    "Tools and environments",
    "an environment of one's own breaks the contract",
    "`astune env check` says what is broken",
)
@each_row(
    ("good", "bad", "fault"),
    [
        ("return [str(number)", "return [number", "an id must be a text, found 0"),
        ("range(self.size)]", "range(self.size)] * 2", "an id is there twice: '0'"),
        ("return [str(number) for number in range(self.size)]", "return []", "is empty"),
        ("range(self.size)]", "random.sample(range(99), self.size)]", "another list at the second call"),
        ("return Game(task_id)", "return 3", "create returned int"),
        ('"role": "user", "content": "Guess my', '"role": "system", "content": "Guess my', "no message of role user"),
        ('"content": "Guess my number."', '"text": "Guess my number."', "not a message in OpenAI's shape"),
        ('"content": "Guess my number."', '"content": {1}', "is nothing that JSON has"),
        ('function_tool("guess"', 'function_tool("guess it"', "tool 'guess it': a name has"),
        ("return Observation(tuple(said))", "return said", "returned list; it must be an Observation"),
        ("return Observation(tuple(said))", "return Observation(tuple(said[1:]))", "each tool call needs one answer"),
        ("Observation(tuple(said))", 'Observation(tuple(said), float("nan"))', "the reward is nan"),
        ('"role": "user", "content": "Use', '"role": "assistant", "content": "Use', "found 'assistant'"),
        ('call.arguments.get("number")', 'call.arguments["number"]', "raised KeyError: 'number' at "),
        ("return len(self.steps) / 100", 'return float("inf")', "evaluate gave inf"),
        ("at {len(self.steps)}", "at {len(self.steps) + random.random()}", "a second world of the same id differs"),
        ("return len(self.steps) / 100", "self.steps.append(0); return 0.5", "differs when it is evaluated each step"),
        ("self.steps = random.Random(task_id).randrange(10), []", "self.steps = 1, STEPS", "a second world"),
        (
            "random.Random(task_id).randrange(10), []",
            "1, []; self.db = sqlite3.connect(':memory:')\n    def close(self): self.db.close()",
            "differs when calls come from other threads: close raised ProgrammingError",
        ),
        ("def evaluate", "def close(self): raise OSError('stuck')\n    def evaluate", "close raised OSError: stuck"),
    ],
)
def test_what_breaks_the_contract_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], good: str, bad: str, fault: str
) -> None:
    assert good in GOOD
    spec = written(tmp_path, f"STEPS = []\n{GOOD.replace(good, bad, 1)}")
    assert main(["env", "check", spec]) == 1
    assert fault in capsys.readouterr().out


def test_worlds_that_share_something_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each new world puts the shared state back to its start, so nothing is seen until two live side by side."""
    shared = "Game.shared = []; self.secret, self.steps = random.Random(task_id).randrange(10), Game.shared"
    code = GOOD.replace("self.secret, self.steps = random.Random(task_id).randrange(10), []", shared)
    code = code.replace("self.steps.append(action)", "self.steps = Game.shared; self.steps.append(action)")
    assert main(["env", "check", written(tmp_path, code)]) == 1
    faults = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fault")]
    assert faults and all("when another one is acted on beside it" in line for line in faults)


@pytest.mark.parametrize("spec", ["countdown", "apps", "gymnasium:FrozenLake-v1"])
def test_what_ships_keeps_the_contract(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not BUILT_IN[spec.partition(":")[0]].installed:
        pytest.skip("not installed")
    assert main(["env", "check", spec]) == 0, capsys.readouterr().out


def test_list_names_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in BUILT_IN) and "my_file.py:MyClass" in printed


@each_row(
    ("arguments", "message"),
    [
        (["--env", "{spec}", "--option", "sise=2"], "no option 'sise'. Did you mean 'size'?"),
        (["--env", "{spec}", "--option", "size"], "--option 'size': expected key=value"),
        (["--env", "{spec}", "--option", "size=["], "the value is no YAML"),
        (["--env", "{spec}", "--option", "size=1", "--option", "size=2"], "--option size is given twice"),
        (["--env", "{spec}", "--env", "{spec}"], "two environments have the same env_type"),
        (["--env", "{spec}", "--env", "apps", "--option", "size=2"], "--option: with one --env only"),
        (["--env", "{spec}", "--ttl", "0"], "--ttl 0: expected a number above 0"),
        (["--env", "{spec}", "--token-variable", "NO_SUCH"], "NO_SUCH: the environment variable is not set"),
        (["--env", "{spec}", "--host", "no.such.host.invalid"], "cannot serve at no.such.host.invalid"),
        (["--env", "{spec}", "--port", "99999"], "cannot serve at 127.0.0.1:99999"),
    ],
)
def test_serve_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    spec = written(tmp_path, GOOD)
    assert main(["env", "serve", *(part.format(spec=spec) for part in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["--env", written(tmp_path, GOOD), "--port", str(taken.getsockname()[1])]
        assert main(["env", "serve", *arguments]) == 2
    assert "in use; --port 0 takes a free port" in capsys.readouterr().err


def test_options_are_read_as_yaml() -> None:
    assert env.parse_options(["a=1", "b=false", "c=[x, y]", "d=a=b", "e="]) == {
        "a": 1,
        "b": False,
        "c": ["x", "y"],
        "d": "a=b",
        "e": None,
    }
    assert env.parse_options(["f=1e-3", "g=no"]) == {"f": 0.001, "g": "no"}, "as in a configuration, by YAML 1.2"
    with pytest.raises(ConfigError, match="expected key=value"):
        env.parse_options(["two words=1"])
