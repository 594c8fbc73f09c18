"""Take answers from a file or a function of the user in the model's place.

    answers.yaml      a list of answers, or one list per task: {task-1: [...], task-2: [...]}; .json likewise
    answers.jsonl     one answer per line
    answers.txt       answers between lines `---`
    answers.py:answer a function of the prompt's text, or of (messages, tools); it may be async

An answer is a text, which is what the model samples, markup included, or an OpenAI assistant message (`content`,
`reasoning_content`, `tool_calls`), which the chat template writes. A list starts anew with every episode.
"""

from __future__ import annotations

import bdb
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from astune.config.source import Loader
from astune.context_tracker.calls import Answer, Call, read_answer
from astune.context_tracker.prompt.answer_formats.base import ReasoningMarks
from astune.context_tracker.scripted_policy import make_generation
from astune.context_tracker.write_answer import answer_ids, find_opened_reasoning, reasoning_text
from astune.errors import ConfigError, PolicyError, RolloutError, WorkflowError, nearest
from astune.plugins import load_plugin
from astune.support.file_kinds import other_kind
from astune.types import Sampling

KEY = "astune.debug.model"
Given = str | Mapping[str, Any]
"""An answer as it is written: a text or an assistant message."""
Listed = tuple[str, Given]
"""The place of an answer, for messages, and the answer."""
FILES = (".yaml", ".yml", ".json", ".jsonl", ".txt")
_FIELDS = ("role", "content", "reasoning_content", "tool_calls")


class AnswerScript(Protocol):
    """Gives scripted answers, one for each call."""

    def episode_started(self, task_id: str) -> None: ...

    async def next(self, call: Call, prompt: str) -> Listed: ...


class ScriptedSource:
    """Stands in for the policy. The run's limits hold: an answer is cut where a model's would be."""

    is_policy = True

    def __init__(self, script: AnswerScript) -> None:
        self._script = script

    def episode_started(self, task_id: str) -> None:
        """Lists of answers start anew."""
        self._script.episode_started(task_id)

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        where, given = await self._script.next(call, call.chat_format.decode(call.prompt.ids))
        try:
            ids = self._encode(call, given) if isinstance(given, str) else answer_ids(call.chat_format, call, given)
        except WorkflowError as error:
            raise PolicyError(f"{where}: {error}") from error
        return read_answer(call, make_generation(ids, sampling, call.chat_format))

    def _encode(self, call: Call, text: str) -> list[int]:
        """A text that does not go on with the reasoning that the prompt has opened comes after an empty block."""
        marks: ReasoningMarks | None = find_opened_reasoning(call.chat_format, call)
        if marks is not None and call.request.prompt is None and marks.closing not in text:
            text = reasoning_text(call.chat_format, call, "") + text
        return [*call.chat_format.encode(text), call.chat_format.stop_token_ids[0]]


def read_script(spec: str) -> AnswerScript:
    """The script behind `scripted:`, a file of answers or a function. Raises ConfigError that says what is wrong."""
    path = Path(spec)
    if path.suffix in FILES:
        return _ListScript(path, _read_file(path))
    if path.suffix == ".py" or not any(mark in spec for mark in (":", "->")):
        expected = f"a file that ends in {', '.join(FILES)}, or path/file.py:function, or package.module:function"
        raise ConfigError(f"{KEY}: scripted:{spec}: expected {expected}")
    return _FunctionScript(spec, load_plugin(spec, kind="script of answers"))


@dataclass
class _ListScript:
    """Answers in turn; `answers` is one list, or one per task."""

    path: Path
    answers: list[Listed] | dict[str, list[Listed]]
    task_id: str = ""
    used: int = 0

    def episode_started(self, task_id: str) -> None:
        self.task_id, self.used = task_id, 0

    async def next(self, call: Call, prompt: str) -> Listed:
        answers, of_task = self._find_answers(), "" if isinstance(self.answers, list) else f" for task {self.task_id!r}"
        if self.used >= len(answers):
            count = f"{len(answers)} answer{'s' * (len(answers) != 1)}"
            raise PolicyError(
                f"{self.path} has {count}{of_task}, and model call {call.number + 1} (agent {call.agent!r}) "
                "asks for one more"
            )
        self.used += 1
        return answers[self.used - 1]

    def _find_answers(self) -> Sequence[Listed]:
        if isinstance(self.answers, list):
            return self.answers
        if self.task_id not in self.answers:
            known = ", ".join(self.answers) or "none"
            hint = nearest(self.task_id, self.answers)
            raise PolicyError(f"{self.path} has no answers for task {self.task_id!r}.{hint} It has those of: {known}")
        return self.answers[self.task_id]


class _FunctionScript:
    """A function of the user. A fault of it ends the episode as a fault of the model, with its traceback."""

    def __init__(self, spec: str, function: Callable[..., Any]) -> None:
        self._spec = spec
        self._function = function
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        needed = [one for one in parameters if one.kind in kinds and one.default is one.empty]
        if len(needed) not in (1, 2):
            raise ConfigError(
                f"{KEY}: scripted:{spec}: expected a function of the prompt's text, or of (messages, tools); "
                f"it takes {len(needed)} arguments"
            )
        self._takes_messages = len(needed) == 2

    def episode_started(self, task_id: str) -> None:
        """Each call is answered on its own."""

    async def next(self, call: Call, prompt: str) -> Listed:
        request = call.request
        arguments = (list(request.messages), list(request.tools)) if self._takes_messages else (prompt,)
        where = f"{self._spec}, model call {call.number + 1}"
        try:
            given = self._function(*arguments)
            if inspect.isawaitable(given):
                given = await given
        except (RolloutError, bdb.BdbQuit):  # quitting a breakpoint() in the function ends the run
            raise
        except Exception as error:
            raise PolicyError(f"{where}: {type(error).__name__}: {error}") from error
        try:
            return where, normalize_answer(given, where)
        except ConfigError as error:
            raise PolicyError(str(error)) from error


def _read_file(path: Path) -> list[Listed] | dict[str, list[Listed]]:
    if not path.is_file():
        others = [other.name for other in path.parent.glob("*") if other.suffix in (*FILES, ".py")]
        raise ConfigError(f"{KEY}: there is no file {path}.{nearest(path.name, others)}")
    if wrong := other_kind(path, "answers for the model to give"):
        raise ConfigError(wrong)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected text in UTF-8: {error}") from error
    if path.suffix == ".txt":
        return _split_texts(path, text)
    if path.suffix == ".jsonl":
        lines = [(f"{path}:{number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [(where, normalize_answer(_parse_json(line, where), where)) for where, line in lines]
    value = _parse_json(text, str(path)) if path.suffix == ".json" else _parse_yaml(text, path)
    if isinstance(value, dict):
        return {str(task): _read_answers(value[task], f"{path}: task {str(task)!r}, ") for task in value}
    return _read_answers(value, f"{path}: ")


def _split_texts(path: Path, text: str) -> list[Listed]:
    answers: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.rstrip() == "---":
            answers.append([])
        else:
            answers[-1].append(line)
    if not any(answers[-1]):
        answers.pop()
    return [(f"{path}: answer {number}", "\n".join(lines)) for number, lines in enumerate(answers, 1)]


def _read_answers(value: Any, before: str) -> list[Listed]:
    if not isinstance(value, list):
        raise ConfigError(f"{before.rstrip(' :,')}: expected a list of answers, got {_name_kind(value)}")
    return [(f"{before}answer {n}", normalize_answer(given, f"{before}answer {n}")) for n, given in enumerate(value, 1)]


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from error


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error


def normalize_answer(given: Any, where: str) -> Given:
    """An answer in OpenAI's shape: arguments as JSON text, `function` around name and arguments."""
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        quotes = "; put a number into quotes" if isinstance(given, int | float) else ""
        raise ConfigError(f"{where}: expected a text or an assistant message, got {_name_kind(given)}{quotes}")
    for name in given:
        if name not in _FIELDS:
            raise ConfigError(
                f"{where}: unknown key {name!r}.{nearest(str(name), _FIELDS)} Known: {', '.join(_FIELDS)}"
            )
    if given.get("role", "assistant") != "assistant":
        raise ConfigError(f"{where}: expected role 'assistant', got {given['role']!r}")
    for name in ("content", "reasoning_content"):
        if not isinstance(given.get(name), str | None):
            raise ConfigError(f"{where}: {name}: expected a text, got {_name_kind(given[name])}")
    message = {"role": "assistant", "content": None, **given}
    calls = given.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ConfigError(f"{where}: tool_calls: expected a list, got {_name_kind(calls)}")
    if calls:
        message["tool_calls"] = [_read_call(one, f"{where}: tool_calls[{at}]") for at, one in enumerate(calls)]
    return message


def _read_call(given: Any, where: str) -> dict[str, Any]:
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(f"{where}: expected {{function: {{name: ..., arguments: ...}}}}, got {_name_kind(given)}")
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str | Mapping):
        raise ConfigError(f"{where}: arguments: expected an object or its JSON text, got {_name_kind(arguments)}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    call_id = {"id": given["id"]} if "id" in given else {}
    return {**call_id, "type": "function", "function": {"name": function["name"], "arguments": text}}


def _name_kind(value: Any) -> str:
    names: dict[type, str] = {list: "a list", dict: "a mapping", str: "a text", bool: "a truth value"}
    return "nothing" if value is None else names.get(type(value), f"{value!r}")
