"""From the arguments of a call to a checked configuration: what all functions of this package begin with.

with configure(solve, tasks=[...], judge=exact, keys={"trainer": {"total_steps": 5}}) as loaded:
    loaded.config.astune.trainer.total_steps   # 5
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

from astune.api.run import Run
from astune.config.keys import FIELDS, FREE_FORM, LEAVES, section_of
from astune.config.load import LoadedConfig, load_config
from astune.config.schema import Config
from astune.config.section import Located
from astune.config.tasks import READERS, ROW_SUFFIXES
from astune.errors import ConfigError
from astune.plugins import LIVE, LiveObjects
from astune.support.builtin import builtin_name
from astune.support.concurrency import outside_loop
from astune.support.run_log import command_log
from astune.task_judge import BUILTIN_JUDGES, FunctionJudge
from astune.task_reader import TaskReader
from astune.task_reader.given import reader_of_given

WORKFLOW = "astune.rollout.agentscope_learn_protocol"
READER = "astune.task_reader.type"
JUDGE = "astune.task_judge.judge_protocol"
PLUGIN = re.compile(r".+(:|->)[A-Za-z_]\w*")


@contextmanager
def configure(
    workflow: object = None,
    tasks: object = None,
    judge: object = None,
    model: object = None,
    *,
    validation_tasks: object = None,
    conf: str | PathLike[str] | None = None,
    keys: Mapping[str, Any],
    for_run: bool = True,
) -> Iterator[LoadedConfig]:
    """The configuration that a call means: the file `conf` below, the named arguments over it, `keys` on top. Within
    the block the objects in it, as functions, have names, records go to the log of the run, and blocking code may run
    an event loop of its own, also in a notebook. With `for_run=False`, as of `load_config`, there is no run.

    Raises `ConfigError` with all that is wrong, TaskError for tasks that are none.
    """
    with outside_loop(), command_log(None) if for_run else nullcontext(), LiveObjects() as live:
        given: dict[str, Any] = {}
        if workflow is not None:
            given[WORKFLOW] = _name(workflow, live, "workflow")
            if conf is None and isinstance(workflow, type | FunctionType) and workflow.__name__.isidentifier():
                given["astune.experiment_name"] = workflow.__name__
        given |= _tasks(tasks, validation_tasks, live)
        if judge is not None:
            given[JUDGE] = _judges(judge, live)
        if model is not None:
            given |= _model(model)
        for name, value in keys.items():
            key = name if name.partition(".")[0] in Config.model_fields else f"astune.{name}"
            given |= dict(_leaves(key, value, live))
        loaded = load_config(None if conf is None else Path(conf), arguments=given, for_run=for_run)
        _refuse_elsewhere(loaded)
        yield loaded


def model_key(model: str) -> str:
    """The key that a text given as the model belongs to: what answers in the debugger, or the model that is trained."""
    debugs = model in ("human", "endpoints") or model.startswith(("scripted:", "replay:", "http://", "https://"))
    return "astune.debug.model" if debugs else "astune.model.path"


def _name(value: object, live: LiveObjects, otherwise: str) -> Any:
    return value if isinstance(value, str) else live.name_of(value, otherwise)


def _judges(judge: object, live: LiveObjects) -> Any:
    """A name, or a list of {judge, weight} with names."""
    if isinstance(judge, list | tuple):
        entries = [dict(entry) if isinstance(entry, Mapping) else {"judge": entry} for entry in judge]
        return [entry | {"judge": _judges(entry.get("judge"), live)} for entry in entries]
    if isinstance(judge, FunctionType):
        FunctionJudge(judge, judge.__name__)  # raises for parameters that nobody gives it, before a model is loaded
    return builtin_name(_name(judge, live, "judge"), BUILTIN_JUDGES)


def _model(model: object) -> dict[str, Any]:
    if isinstance(model, Mapping):
        return {f"astune.model.{name}": _plain(value) for name, value in model.items()}
    if isinstance(model, Run):
        return {"astune.model.path": str(model.model)}
    if isinstance(model, str | PathLike):
        return {model_key(str(model)): str(model)}
    raise ConfigError(
        f"model: got {model!r:.80}; expected 'tiny', a folder, a hub id, a Run, or the keys of astune.model"
    )


def _tasks(tasks: object, validation: object, live: LiveObjects) -> dict[str, Any]:
    """The keys of `astune.task_reader` for what was given as tasks."""
    found: dict[str, Any] = {}
    if isinstance(validation, float):
        found["astune.task_reader.validation_fraction"], validation = validation, None
    if isinstance(tasks, str | PathLike):
        found |= _name_tasks(str(tasks), validation)
    elif isinstance(tasks, TaskReader | type):
        if validation is not None:
            raise ConfigError("validation_tasks: the reader that is given as tasks reads them itself; leave them out")
        found[READER] = live.name_of(tasks, "tasks")
    elif tasks is not None:
        if isinstance(validation, str | PathLike):
            raise ConfigError(
                "validation_tasks: got a path beside tasks that are rows; expected rows, or both as paths"
            )
        found[READER] = live.name_of(reader_of_given(tasks, validation), "tasks")
    elif validation is not None:
        raise ConfigError("validation_tasks: there are no tasks beside them; give them as tasks, or name their file")
    return found


def _name_tasks(tasks: str, validation: object) -> dict[str, Any]:
    if validation is not None and not isinstance(validation, str | PathLike):
        raise ConfigError("validation_tasks: got rows beside tasks that are a path; expected a path, or both as rows")
    suffix = Path(tasks).suffix
    if tasks in READERS or (PLUGIN.fullmatch(tasks) and not Path(tasks).exists()):
        found, key = {READER: tasks}, None
    elif suffix in ROW_SUFFIXES or (re.fullmatch(r"\.[a-z]+", suffix) and not Path(tasks).is_dir()):
        found, key = {READER: "jsonl", "astune.task_reader.jsonl.training.file_path": tasks}, "jsonl"
    else:
        found, key = {READER: "huggingface", "astune.task_reader.huggingface.dataset_path": tasks}, None
    if validation is None:
        return found
    if key is None:
        raise ConfigError(
            f"validation_tasks: {tasks!r} has splits of its own; name one, as "
            "task_reader={'huggingface': {'validation_split': 'test'}}, or hold out a part, as validation_tasks=0.2"
        )
    return found | {"astune.task_reader.jsonl.validation.file_path": str(validation)}


def _leaves(key: str, value: Any, live: LiveObjects) -> Iterator[tuple[str, Any]]:
    """The keys that hold values, of a section that is given as a dict; so that two dicts of one section add up."""
    field = FIELDS.get(key)
    if isinstance(value, Mapping) and field is not None and section_of(field) is not None:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner, live)
    elif key == JUDGE:
        yield key, _judges(value, live) if value is not None else None
    elif field is not None and callable(value) and any(_is_plugin(mark) for mark in field.metadata):
        yield key, live.name_of(value, key.rpartition(".")[2])
    else:
        yield key, _plain(value)


def _is_plugin(mark: object) -> bool:
    return isinstance(mark, Located) and mark.kind == "plugin"


def _plain(value: Any) -> Any:
    """Paths as texts, tuples as lists, as a file of the configuration has them."""
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _refuse_elsewhere(loaded: LoadedConfig) -> None:
    """Raise ConfigError for objects of this process where another has to find them."""
    config = loaded.config.astune
    if config.backbone in ("trinity", "verl"):
        keys, where = [key for key in LEAVES if key not in FREE_FORM], f"the backbone {config.backbone!r}"
    else:  # tasks are read and judged in this process
        keys, where = [WORKFLOW] * bool(config.rollout.workers), f"astune.rollout.workers={config.rollout.workers}"
    tree = loaded.config.model_dump(mode="json")
    live = [(key, text.removeprefix(LIVE)) for key in keys for text in _texts(_at(tree, key)) if text.startswith(LIVE)]
    advice = {READER: "write them to a file, and give its path as tasks"}
    lines = (
        f"{key}: {name!r} is only in this process, and {where} plays episodes in others: "
        + advice.get(key, "put it into a file, and import it from there or name it, as 'my_agent.py:Name'")
        for key, name in live
    )
    if live:
        raise ConfigError("\n".join(lines))


def _at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, wherever."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
