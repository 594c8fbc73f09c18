"""`astune tasks preview`: what the reader makes of the data, before anything is run on it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.panel import Panel

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.config.tasks import TaskReaderConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.errors import AstuneError, ConfigError, TaskError
from astune.support.chinese import localize
from astune.support.terminal import Console, Text
from astune.support.visible import tell_json
from astune.task_reader.held_out import world_of
from astune.task_reader.huggingface import TableRows
from astune.task_reader.table_reader import TableTasks
from astune.task_reader.task_reader_base import SPLITS, Split
from astune.task_reader.task_sets import TaskSet, TaskSets, forgiving, read_task_sets
from astune.training.rollout_setup import environment_service
from astune.types import Task

MOST_SHOWN = 5
"""Problems of one kind that are shown one by one; --json has all."""
MOST_MEASURED = 5_000
"""Tasks of a split, evenly spread, whose lengths are counted."""
BARS = 8
WIDTH = 36


@dataclass(frozen=True)
class _Lengths:
    """The lengths of the questions, conversations included, in `unit`."""

    unit: str
    counts: tuple[int, ...]
    measured: str


@dataclass(frozen=True)
class _Shown:
    """A task as its workflow gets it."""

    task: Task
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Preview:
    """The tasks and problems that are shown. `stops` is what a run would stop at, empty if nothing."""

    sets: TaskSets
    stops: str
    shown: dict[Split, list[_Shown]]
    lengths: dict[Split, _Lengths]
    nulls: dict[Split, dict[str, int]]
    """Nulls inside objects that are left out, by their place."""


def preview(conf: Path, overrides: Sequence[str], show: int, as_json: bool) -> int:
    """Prints counts, the first tasks, lengths and problems; 1 if a run would stop at one of them."""
    if show < 0:
        raise ConfigError(f"--show: expected a whole number from 0, found {show}")
    config = load_config(conf, overrides, for_run=False).config.astune
    with redirect_stdout(sys.stderr), environment_service(config) as config:
        reader = config.task_reader
        sets, stops = _read_sets(reader)
        found = _Preview(
            sets,
            stops,
            {split: [_with_environment(task, reader) for task in sets.of(split)[:show]] for split in SPLITS},
            {split: _lengths(sets.of(split), config) for split in SPLITS},
            {split: _nulls(sets.of(split)) for split in SPLITS},
        )
    if as_json:
        tell_json(_to_json(conf, found))
    else:
        _print(found)
    return 1 if stops else 0


def _read_sets(config: TaskReaderConfig) -> tuple[TaskSets, str]:
    """The tasks that can be read, and what a run would stop at."""
    try:
        return read_task_sets(config), ""
    except TaskError as error:
        return read_task_sets(forgiving(config)), str(error)


def _with_environment(task: Task, config: TaskReaderConfig) -> _Shown:
    """The task with what its environment tells the agent first, from an instance that is released again."""
    if task.env_type is None:
        return _Shown(task)
    return asyncio.run(_open_environment(task, EnvServiceClient.of(config.env_service), config.env_service.params))


async def _open_environment(task: Task, client: EnvServiceClient, params: dict[str, Any]) -> _Shown:
    instance = EnvInstance(client.url, f"preview/{task.task_id}", task.env_type, world_of(task))
    try:
        state = await client.create(task.env_type, world_of(task), instance.instance_id, params)
    finally:
        await client.release(instance)
    tools = tuple(tool["function"]["name"] for tool in state.info.get("tools", ()))
    return _Shown(replace(task, messages=state.messages), tools)


def _lengths(tasks: TaskSet, config: AstuneConfig) -> _Lengths:
    """In tokens where the model's tokenizer is on this machine, else in characters."""
    every = max(len(tasks) // MOST_MEASURED, 1)
    texts = [_join_text(task) for task in tasks[::every] if task.query or task.messages]
    measured = "all" if every == 1 else f"every {every}th"
    try:
        local = config.model.path == "tiny" or Path(config.model.path).is_dir()
        chat_format = load_chat_format(config.model, resolve_base_dir(config.model.path)) if local else None
    except AstuneError:
        chat_format = None
    if chat_format is None:
        return _Lengths("characters", tuple(map(len, texts)), measured)
    return _Lengths("tokens", tuple(len(chat_format.encode(text)) for text in texts), measured)


def _nulls(tasks: TaskSet) -> dict[str, int]:
    rows = tasks.tasks.rows if isinstance(tasks.tasks, TableTasks) else None
    return rows.nulls_left_out(tasks.positions) if isinstance(rows, TableRows) else {}


def _join_text(task: Task) -> str:
    said = [message.get("content") for message in task.messages]
    return "\n".join(text for text in said if isinstance(text, str)) if said else task.query


def _print(found: _Preview) -> None:
    console = Console()
    for split in SPLITS:
        console.print(Text(localize(_count_line(split, found.sets.of(split))), style="bold"), soft_wrap=True)
        for one in found.shown[split]:
            console.print(Panel(Text(_render_task(one)), title=Text(f"{one.task.task_id}  {_here(one.task.place)}")))
        for line in (*_histogram(found.lengths[split]), *_explain_nulls(found.nulls[split])):
            console.print(Text(localize(line)), soft_wrap=True)
        console.print()
    for line in _problems(found.sets, found.stops):
        console.print(Text(localize(line)), soft_wrap=True)


def _count_line(split: Split, tasks: TaskSet) -> str:
    parts = [f"{split}: {len(tasks):,} task{'s' * (len(tasks) != 1)}"]
    if tasks.filtered:
        parts.append(f"{tasks.filtered:,} left out by the filter")
    if tasks.skipped:
        parts.append(f"{len(tasks.skipped):,} bad record{'s' * (len(tasks.skipped) != 1)}")
    return ", ".join(parts)


def _render_task(one: _Shown) -> str:
    task = one.task
    lines = [] if task.messages and not task.query else [f"query: {task.query}"]
    lines += [f"{message['role']}: {_show_content(message.get('content'))}" for message in task.messages]
    if task.answer is not None:
        lines.append(f"answer: {task.answer}")
    if task.env_type is not None:
        lines.append(f"environment: {task.env_type}, tools: {', '.join(one.tools) or 'none, actions are text'}")
    if task.metadata:
        lines.append(f"metadata: {json.dumps(dict(task.metadata), ensure_ascii=False, default=str):.300}")
    return "\n".join(lines)


def _show_content(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)


def _histogram(lengths: _Lengths) -> list[str]:
    counts = lengths.counts
    if not counts:
        return []
    low, high = min(counts), max(counts)
    middle = sorted(counts)[len(counts) // 2]
    lines = [
        f"length of the question in {lengths.unit} ({lengths.measured} counted): {low:,} to {high:,}, half up to "
        f"{middle:,}"
    ]
    size = -(-(high - low + 1) // BARS)
    bins = [0] * (-(-(high - low + 1) // size))
    for count in counts:
        bins[(count - low) // size] += 1
    for number, held in enumerate(bins):
        start = low + number * size
        bar = "█" * round(WIDTH * held / max(bins)) or ("▏" if held else "")
        lines.append(f"  {start:>7,} to {start + size - 1:<7,} {bar} {held:,}")
    return lines


def _explain_nulls(nulls: Mapping[str, int]) -> list[str]:
    """Say which nulls are left out: a null that Arrow filled in looks like one that was meant."""
    if not nulls:
        return []
    most = sorted(nulls.items(), key=lambda entry: -entry[1])
    listed = ", ".join(f"{place} {count:,}" for place, count in most[:MOST_SHOWN])
    more = f", and {len(most) - MOST_SHOWN:,} more (all with --json)" if len(most) > MOST_SHOWN else ""
    return [f"nulls inside objects that are left out, as Arrow fills in keys that an object lacks: {listed}{more}"]


def _problems(sets: TaskSets, stops: str) -> list[str]:
    found = [*sets.training.skipped, *sets.held_out.skipped]
    lines = [_here(problem) for problem in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        lines.append(f"... {len(found) - MOST_SHOWN:,} more bad records (all with --json)")
    lines += [_here(warning) for warning in sets.warnings]
    if stops:
        return [*lines, "", f"a run would stop: {_here(stops)}"]
    return [*lines, "" if lines else "no problems found"]


def _here(place: str) -> str:
    return place.replace(f"{Path.cwd()}/", "")


def _to_json(conf: Path, found: _Preview) -> dict[str, Any]:
    splits: dict[str, dict[str, Any]] = {
        split: {
            "tasks": len(found.sets.of(split)),
            "filtered": found.sets.of(split).filtered,
            "skipped": list(found.sets.of(split).skipped),
            "first": [{**vars(one.task), "tools": one.tools} for one in found.shown[split]],
            "lengths": {"unit": found.lengths[split].unit, "counted": found.lengths[split].measured}
            | _spread(found.lengths[split].counts),
            "nulls_left_out": found.nulls[split],
        }
        for split in SPLITS
    }
    return {"conf": str(conf), **splits, "warnings": list(found.sets.warnings), "a_run_would_stop": found.stops or None}


def _spread(counts: Sequence[int]) -> dict[str, int]:
    if not counts:
        return {}
    ordered = sorted(counts)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
