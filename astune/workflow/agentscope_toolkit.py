"""The tools of an environment as a toolkit of the installed AgentScope, 2.x or 1.x.

What the agent's framework answers itself never reaches the environment: a tool that does not exist, and on 2.x
arguments that do not fit the tool's schema (2.x repairs what it can first). Both frameworks turn what a tool raises
into a result that the model reads; a service that fails ends the episode all the same, at the next model call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from astune.workflow.agentscope import major_version
from astune.workflow.environment import EnvironmentDone

if TYPE_CHECKING:
    from astune.workflow.environment import TaskEnvironment

OVER = "The episode is over."
"""What a tool result says when the environment is done."""


def toolkit_of(environment: TaskEnvironment) -> Any:
    """A new `Toolkit` whose tools act in `environment`. Raises MissingDependency."""
    return _toolkit_1(environment) if major_version() == 1 else _toolkit_2(environment)


def _toolkit_2(environment: TaskEnvironment) -> Any:
    tools, permission = import_module("agentscope.tool"), import_module("agentscope.permission")
    allowed = permission.PermissionDecision(
        behavior=permission.PermissionBehavior.ALLOW, message="An environment's tools act in the environment alone."
    )
    text = import_module("agentscope.message").TextBlock
    made = []
    for tool in environment.tools:
        chunk = _result(environment, tool, lambda said: tools.ToolChunk(content=[text(text=said)]))
        one = tools.FunctionTool(chunk, name=_name(tool), is_concurrency_safe=False, permission=allowed)
        one.description = tool["function"].get("description", "")
        one.input_schema = copy.deepcopy(_parameters(tool))
        made.append(one)
    return tools.Toolkit(tools=made)


def _toolkit_1(environment: TaskEnvironment) -> Any:
    tools = import_module("agentscope.tool")
    text = import_module("agentscope.message").TextBlock
    toolkit = tools.Toolkit()
    for tool in environment.tools:
        respond = _result(environment, tool, lambda said: tools.ToolResponse(content=[text(type="text", text=said)]))
        function = {"description": "", **tool["function"], "parameters": _parameters(tool)}
        schema = {"type": "function", "function": function}
        toolkit.register_tool_function(respond, func_name=_name(tool), json_schema=copy.deepcopy(schema))
        # Registering takes an empty list of required arguments out of the schema.
        toolkit.tools[_name(tool)].json_schema = copy.deepcopy(schema)
    return toolkit


def _result(environment: TaskEnvironment, tool: Mapping[str, Any], shape: Callable[[str], Any]) -> Callable[..., Any]:
    """The function of a tool: takes a step and gives the answer's text in AgentScope's shape."""

    async def act(**arguments: Any) -> Any:
        """Act in the environment."""
        try:
            said = await environment.call(_name(tool), arguments)
        except EnvironmentDone:
            return shape(OVER)
        return shape(f"{said}\n{OVER}" if environment.done else said)

    return act


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema of the arguments; a tool without one takes none."""
    return tool["function"].get("parameters") or {"type": "object", "properties": {}}
