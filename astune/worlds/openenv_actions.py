"""An OpenEnv environment's schemas: its actions as tools, its observations as what an agent reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from astune.errors import ConfigError, nearest

ACT = "act"
"""The tool that does an action, where the environment does not name tools itself."""
OVER_MCP = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the action's schema where the actions are calls of tools over MCP."""
LIST_TOOLS = {"jsonrpc": "2.0", "method": "tools/list", "id": 1}

Tool = Mapping[str, Any]


class Wording:
    """`show`: the fields of observations that the agent sees, None for all that hold something. Raises `ConfigError`
    for one that there is not."""

    def __init__(self, schema: Mapping[str, Any], show: Sequence[str] | None) -> None:
        action = schema.get("action") or {}
        properties = {name: one for name, one in (action.get("properties") or {}).items() if name != "metadata"}
        self.over_mcp = action.get("title") in OVER_MCP
        wanted = [name for name in action.get("required") or () if name in properties]
        only = wanted[0] if len(wanted) == 1 else None
        self.text_field = only if only and properties[only].get("type") == "string" and not self.over_mcp else None
        """The field that an action's text fills, where nothing else has to be said."""
        parameters = {key: value for key, value in action.items() if key not in ("title", "description")}
        self._act = tool_of(ACT, action.get("description"), {**parameters, "properties": properties})
        self._show = show
        observed = [schema.get("observation") or {}, schema.get("reset_observation") or {}]
        fields = {name for one in observed for name in one.get("properties") or {}} - {"done", "reward"}
        for name in show or ():
            if name not in fields:
                listed = ", ".join(sorted(fields))
                raise ConfigError(
                    f"show: no field {name!r} in observations.{nearest(name, fields)} There are: {listed}"
                )

    def read_tools(self, listed: Mapping[str, Any]) -> Sequence[Tool]:
        """The tools in OpenAI's shape. `listed`: the answer to LIST_TOOLS, empty where they do not come over MCP."""
        if not self.over_mcp:
            return (self._act,)
        result = listed.get("result")
        tools = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list) or not all(isinstance(one, dict) and "name" in one for one in tools):
            raise ValueError(f"expected a list of tools: {listed!r:.300}")
        return tuple(tool_of(one["name"], one.get("description"), one.get("inputSchema") or {}) for one in tools)

    def fill_in(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The action that calls the tool; None if there is no such tool."""
        if self.over_mcp:
            return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        return dict(arguments) if name == ACT else None

    def tell(self, observation: Mapping[str, Any]) -> str:
        """Write what the agent reads of an observation: of a tool's answer its text, of one field that is a text the
        text, else JSON. Of an observation that says nothing, its metadata.

        >>> Wording({}, None).tell({"said": "No.", "hint": None, "metadata": {}})
        'No.'
        """
        if self.over_mcp and "tool_name" in observation:
            return _tell_result(observation)
        shown = {name: observation.get(name) for name in self._show or observation if self._show or name != "metadata"}
        said = {name: value for name, value in shown.items() if value is not None} or observation.get("metadata") or {}
        only = next(iter(said.values())) if isinstance(said, dict) and len(said) == 1 else None
        return only if isinstance(only, str) else json.dumps(said, ensure_ascii=False) if said else ""


def tool_of(name: str, description: str | None, schema: Mapping[str, Any]) -> Tool:
    parameters = {"type": "object", "properties": {}, **schema}
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}


def tell_faults(errors: Sequence[Mapping[str, Any]]) -> str:
    """Tell the agent what is wrong with an action.

    >>> tell_faults([{"loc": ["word"], "msg": "Field required"}])
    'This is no action here. word: Field required'
    """
    places = [".".join(map(str, error.get("loc") or ())) for error in errors]
    told = [f"{place}: {error.get('msg')}" for place, error in zip(places, errors, strict=True)]
    return "This is no action here. " + "; ".join(told)


def _tell_result(observation: Mapping[str, Any]) -> str:
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, dict):
        return f"Error: {error.get('message')}"
    blocks = result.get("content") if isinstance(result, dict) else None
    if not isinstance(blocks, list):
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    texts = [block.get("text") if block.get("type") == "text" else f"[{block.get('type')}]" for block in blocks]
    return "\n".join(map(str, texts))
