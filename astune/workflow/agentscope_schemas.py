"""JSON schemas that AgentScope 2.x writes anew for every agent, written once: each attempt has an agent of its own.

For every tool that is a function AgentScope parses the docstring, builds a pydantic model and has its schema written,
for one tool of its own too, for the tool that changes tools three times, and for summaries. That is four fifths of the
2.0 ms that an agent without tools takes from its making to its answer (AgentScope 2.0.10, two calls in
`benchmarks/agent_call.py`). What comes out is the same each time, so it is kept and copied here. Nothing else of
AgentScope changes.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

MOST_KEPT = 1000
"""Functions, or sets of groups of tools, that are known at once: where every task has its own, memory would fill."""


@functools.cache
def write_schemas_once() -> None:
    """Let AgentScope 2.x write each schema only once for all that are alike, in this process and from now on: those of
    a `FunctionTool`, of the groups of a `ResetTools`, and of the summary of a `ContextConfig`. A second call does
    nothing."""
    tool, config = import_module("agentscope.tool"), import_module("agentscope.agent").ContextConfig
    tool.FunctionTool.__init__ = _takes_what_is_known(tool.FunctionTool.__init__)
    tool.ResetTools.input_schema = property(_asks_once_for_groups(tool.ResetTools.input_schema.fget))
    config.__init__ = _takes_its_default(config.__init__, config)


def _takes_what_is_known(written: Callable[..., None]) -> Callable[..., None]:
    """`FunctionTool.__init__`, given the description and the schema that it wrote itself for an equal function."""
    known: dict[tuple[Any, str], tuple[Any, str, Any]] = {}

    @functools.wraps(written)
    def init(
        self: Any,
        func: Any,
        name: Any = None,
        description: Any = None,
        input_schema: Any = None,
        *more: Any,
        **named: Any,
    ) -> None:
        said = None if description or input_schema else _read_function(func)
        if said is None:
            return written(self, func, name, description, input_schema, *more, **named)
        key, hints = said
        if key not in known or known[key][0] != hints:
            written(self, func, name, description, input_schema, *more, **named)
            return _keep(known, key, (hints, self.description, deepcopy(self.input_schema)))
        _, description, input_schema = known[key]
        return written(self, func, name, description, deepcopy(input_schema), *more, **named)

    return init


def _read_function(func: Any) -> tuple[tuple[Any, str], Any] | None:
    """Read all that AgentScope reads of a function: docstring, signature, and the meaning of its annotations. None if
    they cannot be evaluated."""
    try:
        return (func.__doc__, str(inspect.signature(func))), typing.get_type_hints(func, include_extras=True)
    except Exception:  # annotations are evaluated, and their names may stand for nothing here
        return None


def _asks_once_for_groups(written: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`ResetTools.input_schema`, which reads names and descriptions of the groups."""
    known: dict[Any, Any] = {}

    @functools.wraps(written)
    def input_schema(self: Any) -> Any:
        groups = tuple((group.name, group.description) for group in self.groups)
        if groups not in known:
            _keep(known, groups, written(self))
        return deepcopy(known[groups])

    return input_schema


def _takes_its_default(written: Callable[..., None], config: type[Any]) -> Callable[..., None]:
    """`ContextConfig.__init__`, given the schema of a summary that is its default. Subclasses may have another."""
    default = config().summary_schema

    @functools.wraps(written)
    def init(self: Any, **given: Any) -> None:
        if type(self) is not config or "summary_schema" in given:
            return written(self, **given)
        written(self, summary_schema=deepcopy(default), **given)
        self.__pydantic_fields_set__.discard("summary_schema")

    return init


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= MOST_KEPT:
        known.clear()
    known[key] = value
