"""A bank clerk in the installed AgentScope: one tool that looks, one that writes and counts its calls."""

from __future__ import annotations

import json
from typing import Any

import openai

from astune.clients.api import http_library
from astune.online import read_only
from astune.testing import ScriptedOnlineService
from astune.workflow.agentscope import chat_model, major_version, training_defaults
from astune.workflow.tool_log import ToolLog

MAJOR = major_version()
PROMPT = "You are a clerk."


def call(name: str, arguments: dict[str, Any] | str, call_id: str = "c1") -> dict[str, Any]:
    """The message of an assistant that calls a tool."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    one = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"content": None, "tool_calls": [one]}


def model_of(service: ScriptedOnlineService) -> Any:
    """Asks `service` in the process, so that no connection stays open."""
    http = http_library()
    inside = http.AsyncClient(transport=http.ASGITransport(app=service.app))
    client = openai.AsyncOpenAI(api_key="none", base_url="http://live/v1", max_retries=0, http_client=inside)
    return chat_model(client, ToolLog(), context_size=None, options={})


class Bank:
    def __init__(self) -> None:
        self.paid: list[float] = []
        self.looked = 0

    def pay(self, to: str, amount: float) -> Any:
        """Pay.

        Args:
            to: whom
            amount: how much
        """
        self.paid.append(amount)
        return result(f"receipt {len(self.paid)} of {to}")

    @read_only
    def balance(self) -> Any:
        """Look how much there is."""
        self.looked += 1
        return result("7")


def result(text: str) -> Any:
    if MAJOR == 2:
        return text
    from agentscope.message import TextBlock
    from agentscope.tool import ToolResponse

    return ToolResponse(content=[TextBlock(type="text", text=text)])


def toolkit_of(*functions: Any) -> Any:
    from agentscope.tool import Toolkit

    if MAJOR == 2:
        from agentscope.tool import FunctionTool

        return Toolkit(tools=[FunctionTool(function) for function in functions])
    toolkit = Toolkit()
    for function in functions:
        toolkit.register_tool_function(function)
    return toolkit


def clerk(live: ScriptedOnlineService, bank: Bank, kind: Any = None, **options: Any) -> Any:
    """The agent, on the model that is served by `live`."""
    toolkit = toolkit_of(bank.pay, bank.balance)
    if MAJOR == 2:
        from agentscope.agent import Agent

        options = training_defaults() | options
        return (kind or Agent)(name="clerk", system_prompt=PROMPT, model=model_of(live), toolkit=toolkit, **options)
    from agentscope.agent import ReActAgent
    from agentscope.formatter import OpenAIChatFormatter

    agent = (kind or ReActAgent)(
        name="clerk",
        sys_prompt=PROMPT,
        model=model_of(live),
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        **options,
    )
    agent.set_console_output_enabled(False)
    return agent


async def ask(agent: Any, text: str, **options: Any) -> Any:
    """The final message."""
    if MAJOR == 2:
        from agentscope.message import UserMsg

        return await agent.reply(UserMsg("user", text), **options)
    from agentscope.message import Msg

    return await agent(Msg("user", text, "user"), **options)


async def remembered(agent: Any) -> list[Any]:
    return list(agent.state.context) if MAJOR == 2 else await agent.memory.get_memory()


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """What a request holds, as role and text or name of the tool that is called."""
    found = []
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else "".join(part["text"] for part in content or [])
        called = ",".join(one["function"]["name"] for one in message.get("tool_calls") or [])
        found.append(f"{message['role']}: {text or called}")
    return found
