"""Read the replies of an environment service. The values came over the network, and none is trusted.

Every function takes a reply's JSON object and raises ValueError, in words of what was expected, where it is another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvState:
    """The answer of an environment, as `astune.environment.Observation` has it.

    `messages` are in OpenAI's shape. `reward` is that of the step alone, finite. After `done` no step counts.
    """

    messages: tuple[Mapping[str, Any], ...]
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    """For a new instance, its tools in OpenAI's shape under `tools`. Else anything that the environment adds."""


def parse(body: bytes) -> Any:
    """Read JSON that any program can go on with: no NaN, no half of a surrogate pair, no nesting without end."""
    text = body.decode()
    try:
        value = json.loads(text, parse_constant=_no_number)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def state(reply: Mapping[str, Any]) -> EnvState:
    """The state in a reply to `create` or `step`. AgentJet's services give `state` as one message or as a list of
    lists, too."""
    data = reply.get("data")
    if not isinstance(data, dict) or "state" not in data:
        raise ValueError('expected {"data": {"state": messages, "reward": number, "is_terminated": bool, "info": {}}}')
    done, info = data.get("is_terminated", False), data.get("info")
    if not isinstance(done, bool):
        raise ValueError(f"expected true or false for is_terminated, got {done!r}")
    if not isinstance(info, dict | None):
        raise ValueError(f"expected an object for info, got {info!r}")
    reward = _finite(data.get("reward", 0.0), "reward")
    return EnvState(_messages(data["state"]), reward, done, _with_tools(info or {}))


def score(reply: Mapping[str, Any]) -> float:
    """The score in a reply to `evaluate`. BFCL of agentscope-runtime gives an object with an `accuracy`, which counts
    only if the object is `valid`."""
    given = reply.get("data")
    if isinstance(given, dict) and "accuracy" in given:
        if given.get("valid") is not True:
            raise ValueError(f"the environment could not be evaluated: {given.get('error')!s:.300}")
        given = given["accuracy"]
    return _finite(given, "data, the score")


def description(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    data = reply.get("data")
    if not isinstance(data, dict):
        raise ValueError('expected {"data": {...}}')
    return data


def task_ids(reply: Mapping[str, Any]) -> list[str]:
    """Read the ids of tasks. AgentJet's services may call them `task_ids`, and number them."""
    ids = reply.get("data", reply.get("task_ids"))
    if not isinstance(ids, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in ids):
        raise ValueError('expected {"data": [task ids]}')
    return [str(one) for one in ids]


def env_types(reply: Mapping[str, Any]) -> list[str]:
    types = reply.get("env_types")
    if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
        raise ValueError('expected {"env_types": [names]}')
    return types


def _finite(value: object, name: str) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"expected a finite number for {name}, got {value!r:.50}")


def _messages(given: object) -> tuple[Mapping[str, Any], ...]:
    """Read one message, a text, a list of such, or a list of lists of such."""
    if isinstance(given, str):
        return ({"role": "user", "content": given},)
    if isinstance(given, dict):
        return (_message(given),)
    if not isinstance(given, list):
        raise ValueError(f"expected messages for state, got {given!r:.50}")
    flat = [entry for part in given for entry in (part if isinstance(part, list) else [part])]
    return tuple({"role": "user", "content": entry} if isinstance(entry, str) else _message(entry) for entry in flat)


def _message(given: object) -> Mapping[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str) or not given["role"]:
        raise ValueError(f"expected messages with a role in state, got {given!r:.100}")
    content = given.get("content")
    if not isinstance(content, str | list) and not (content is None and given.get("tool_calls")):
        raise ValueError(f"expected messages with a content in state, got {given!r:.100}")
    return given


def _with_tools(info: Mapping[str, Any]) -> Mapping[str, Any]:
    tools = info.get("tools")
    if not isinstance(tools, list | None):
        raise ValueError(f"expected a list of tools in info.tools, got {tools!r:.50}")
    for tool in tools or []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"expected a tool in OpenAI's shape in info.tools, got {tool!r:.100}")
    return info


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
