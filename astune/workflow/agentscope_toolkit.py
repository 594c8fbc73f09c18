"""Tools in OpenAI's shape as a toolkit of the installed AgentScope, 2.x or 1.x.

AgentScope answers some calls itself: of a tool that does not exist, and on 2.x with arguments that do not fit the
tool's schema (2.x repairs what it can first). Both lines turn what a tool raises into a result that the model reads.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from astune.workflow.agentscope import major_version

Tool = Mapping[str, Any]
Act = Callable[[str, Mapping[str, Any]], Awaitable[str]]
"""Runs the tool of that name with those arguments; returns the text of its result."""


def toolkit_of(tools: Sequence[Tool], act: Act) -> Any:
    """A new `Toolkit` of `tools`, all of which are run by `act`. Raises MissingDependency."""
    return _toolkit_1(tools, act) if major_version() == 1 else _toolkit_2(tools, act)


def _toolkit_2(tools: Sequence[Tool], act: Act) -> Any:
    module, permission = import_module("agentscope.tool"), import_module("agentscope.permission")
    allowed = permission.PermissionDecision(
        behavior=permission.PermissionBehavior.ALLOW, message="An environment's tools act in the environment alone."
    )
    text = import_module("agentscope.message").TextBlock
    made = []
    for tool in tools:
        chunk = _function(tool, act, lambda said: module.ToolChunk(content=[text(text=said)]))
        one = module.FunctionTool(chunk, name=_name(tool), is_concurrency_safe=False, permission=allowed)
        one.description = tool["function"].get("description", "")
        one.input_schema = copy.deepcopy(_parameters(tool))
        made.append(one)
    return module.Toolkit(tools=made)


def _toolkit_1(tools: Sequence[Tool], act: Act) -> Any:
    module = import_module("agentscope.tool")
    text = import_module("agentscope.message").TextBlock
    toolkit = module.Toolkit()
    for tool in tools:
        respond = _function(tool, act, lambda said: module.ToolResponse(content=[text(type="text", text=said)]))
        function = {"description": "", **tool["function"], "parameters": _parameters(tool)}
        schema = {"type": "function", "function": function}
        toolkit.register_tool_function(respond, func_name=_name(tool), json_schema=copy.deepcopy(schema))
        # Registering takes an empty list of required arguments out of the schema.
        toolkit.tools[_name(tool)].json_schema = copy.deepcopy(schema)
    return toolkit


def _function(tool: Tool, act: Act, shape: Callable[[str], Any]) -> Callable[..., Any]:
    """The function of a tool, whose result is in AgentScope's shape."""

    async def run(**arguments: Any) -> Any:
        """Act in the environment."""
        return shape(await act(_name(tool), arguments))

    return run


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """The JSON schema of the arguments; a tool without one takes none."""
    return tool["function"].get("parameters") or {"type": "object", "properties": {}}
