"""Judges by name: those that ship, and those that users register.

    @register_judge("exam")
    def exam(task: Task, episode: Episode) -> bool:
        return ...

A registered name can stand in `astune.task_judge.judge_protocol` and in the field `scorer` of a task. The module that
registers it must be imported before, as the one of the workflow is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from astune.config.judges import TaskJudgeConfig
from astune.errors import PluginError, nearest
from astune.plugins import load_plugin
from astune.support.builtin import builtin_name
from astune.task_judge.function_judge import FunctionJudge
from astune.task_judge.judge_base import Judge

BUILTIN_JUDGES = {
    "EnvServiceJudge": "astune.task_judge.env_service_as_judge:EnvServiceJudge",
    "LlmAsJudge": "astune.task_judge.llm.judge:LlmAsJudge",
    "MathAnswerAndLlmAsJudge": "astune.task_judge.math.judge_with_llm:MathAnswerAndLlmAsJudge",
    "MathAnswerAsJudge": "astune.task_judge.math.judge:MathAnswerAsJudge",
    "ReasoningGymJudge": "astune.task_judge.reasoning_gym_judge:ReasoningGymJudge",
    "RubricsAsJudge": "astune.task_judge.llm.judge:RubricsAsJudge",
    "ToolUseJudge": "astune.task_judge.tool_use.judge:ToolUseJudge",
}

J = TypeVar("J", bound=Callable[..., Any])

_registered: dict[str, Callable[..., Any]] = {}


def register_judge(name: str) -> Callable[[J], J]:
    """Decorator that gives a judge, a class or a function, the name `name`. Raises PluginError for a name that is
    taken; a module that is loaded again may register its own judges again."""

    def register(judge: J) -> J:
        other = _registered.get(name)
        if name in BUILTIN_JUDGES or (other is not None and other.__qualname__ != judge.__qualname__):
            taken = BUILTIN_JUDGES.get(name) or f"{_registered[name].__module__}:{_registered[name].__qualname__}"
            raise PluginError(f"register_judge({name!r}): the name is taken by {taken}")
        _registered[name] = judge
        return judge

    return register


def judge_names() -> list[str]:
    """Names of the judges that ship and of those registered so far."""
    return sorted({*BUILTIN_JUDGES, *_registered})


def import_registered(specs: Iterable[str], workflow: str | None) -> None:
    """Imports the file of the workflow, where users register judges, if one of `specs` is a name that is not known
    without it. Raises `PluginError` if that fails."""
    known = {*BUILTIN_JUDGES, *_registered}
    if workflow is not None and any(not _is_path(spec) and spec not in known for spec in specs):
        load_plugin(workflow, kind="workflow")


def load_judge(spec: str, config: TaskJudgeConfig, *, key: str) -> Judge:
    """The judge that `spec` names: one that ships, a registered one, or 'package.module:Name'.

    A class is constructed with `config`; a function, async or not, is called for each episode (`FunctionJudge`); a
    program may give a judge that it made itself.
    `key` is the key of the configuration that names it. Raises `PluginError` for anything else.
    """
    place = f"{key}: {spec!r}"
    found = find_judge(spec)
    if isinstance(found, Judge) and not isinstance(found, type):
        return found
    if not isinstance(found, type):
        if not callable(found):
            raise PluginError(f"{place} is a {type(found).__name__}, expected a class or a function")
        return FunctionJudge(found, name=spec, answer_format=config.answer_format)
    judge = found(config)
    if not isinstance(judge, Judge) or not inspect.iscoroutinefunction(judge.judge):
        raise PluginError(f"{place} has no method async judge(self, task, episode) -> Verdict")
    return judge


def find_judge(spec: str) -> Any:
    """The class, function or other thing that `spec` names. Raises `PluginError` that lists what there is."""
    if spec in _registered:
        return _registered[spec]
    if builtin_name(spec, BUILTIN_JUDGES) not in BUILTIN_JUDGES and not _is_path(spec):
        raise PluginError(
            f"unknown judge {spec!r}.{nearest(spec, judge_names())} "
            f"Expected 'package.module:Name', 'path/file.py:Name' or one of {', '.join(judge_names())}"
        )
    return load_plugin(spec, kind="judge", builtin=BUILTIN_JUDGES)


def _is_path(spec: str) -> bool:
    return ":" in spec or "->" in spec
