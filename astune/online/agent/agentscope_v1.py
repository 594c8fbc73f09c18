"""`ReActAgent` of AgentScope 1.x. A hook is one of the instance's `post_reply` hooks."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Any

from astune.errors import OnlineError
from astune.online.agent.agentscope import OnReply, check_kind, check_sandbox
from astune.online.agent.conversation import Conversation
from astune.online.agent.shadow import ShadowRun
from astune.online.agent.writes import REFUSAL, RecordedTool, ToolDecision, WriteGuard, is_read_only

_agent: Any = import_module("agentscope.agent")
_formatter: Any = import_module("agentscope.formatter")
_memory: Any = import_module("agentscope.memory")
_message: Any = import_module("agentscope.message")
_tool: Any = import_module("agentscope.tool")

_EQUIP = "reset_equipped_tools"
_COMPRESSED = "compressed"
"""AgentScope's mark of messages that a summary stands for."""
_ALONE = ("long_term_memory", "plan_notebook")
"""Attributes of an agent that write and belong to no toolkit."""


class _Reply:
    unfinished: str | None = None

    def __init__(self, agent: Any, inputs: Any, output: Any) -> None:
        self.agent = agent
        self.inputs = inputs
        self.output = output

    async def messages(self) -> tuple[list[Any], list[Any]]:
        """Split the history at the inputs, found by their ids; without inputs a reply begins after the last message of
        a user."""
        compresses = self.agent.compression_config and self.agent.compression_config.enable
        held = await self.agent.memory.get_memory(exclude_mark=_COMPRESSED if compresses else None)
        given = self.inputs.get("msg")
        ids = {message.id for message in ([given] if isinstance(given, _message.Msg) else given or ())}
        starts = [number for number, message in enumerate(held) if message.id in ids]
        after = [number + 1 for number, message in enumerate(held) if message.role == "user"]
        start = starts[0] if starts else max(after, default=0)
        return list(held[:start]), list(held[start:])


class _ShadowToolkit(_tool.Toolkit):  # type: ignore[misc]  # a class of AgentScope, which mypy does not see
    """The tools of another toolkit behind a guard."""

    def __init__(self, like: Any, guard: WriteGuard, own: Sequence[str]) -> None:
        super().__init__(like._agent_skill_instruction, like._agent_skill_template)
        self.tools = {name: dataclasses.replace(tool) for name, tool in like.tools.items()}
        self.groups = {name: dataclasses.replace(group) for name, group in like.groups.items()}
        self.skills = dict(like.skills)
        self._middlewares = list(like._middlewares)
        self._guard = guard
        self._own = frozenset(own)
        if _EQUIP in self.tools:
            self.tools[_EQUIP].original_func = self.reset_equipped_tools

    async def call_tool_function(self, tool_call: Any) -> AsyncIterator[Any]:
        name = tool_call["name"]
        tool, sandbox = self.tools.get(name), self._guard.sandbox
        if tool is None or name in self._own:
            return await super().call_tool_function(tool_call)  # type: ignore[no-any-return]
        inside = sandbox is not None and name in sandbox.tools
        reads = is_read_only(tool.original_func)
        use = self._guard.decide(name, tool_call.get("input") or {}, reads=reads, in_sandbox=inside)
        if use.decision == "ran":
            return await super().call_tool_function(tool_call)  # type: ignore[no-any-return]
        if use.decision == "sandbox":
            return await sandbox.call_tool_function(tool_call)  # type: ignore[no-any-return]
        return _answer_call(use)


async def _answer_call(use: ToolDecision) -> AsyncIterator[Any]:
    output = copy.deepcopy(use.result) if use.decision == "recorded" else REFUSAL.format(name=use.name)
    said = [_message.TextBlock(type="text", text=output)] if isinstance(output, str) else output
    yield _tool.ToolResponse(content=said)


class _Adapter1:
    def hear(self, agent: Any, listener: object, on_reply: OnReply) -> None:
        async def report(its: Any, inputs: dict[str, Any], output: Any) -> None:
            await on_reply(_Reply(its, inputs, output))

        agent.register_instance_hook("post_reply", f"astune_{id(listener):x}", report)

    def check(self, agent: Any, clone: Any, middlewares: Sequence[Any] | None) -> None:
        check_kind(agent, _agent.ReActAgent, clone)
        if middlewares is not None:
            raise OnlineError("watch(middlewares=...) is for AgentScope 2.x; agents of 1.x have none")
        if clone is not None:
            return
        if alone := [name for name in _ALONE if getattr(agent, name) is not None]:
            raise OnlineError(
                f"{agent.name!r} has a {alone[0]}, which a shadow must not write to: give watch(agent, clone=...), a "
                "function that makes an agent with one of its own, or without"
            )

    def tool_results(self, messages: Sequence[Any]) -> list[RecordedTool]:
        calls = {call["id"]: call for message in messages for call in message.get_content_blocks("tool_use")}
        results = [result for message in messages for result in message.get_content_blocks("tool_result")]
        known = [result for result in results if result["id"] in calls]
        return [
            RecordedTool(calls[result["id"]]["name"], calls[result["id"]]["input"], result["output"])
            for result in known
        ]

    def clone(self, agent: Any, model: Any, middlewares: Sequence[Any] | None) -> Any:
        """Make an agent with the toolkit of `agent`, in whose place `play` puts another: AgentScope would write into
        it."""
        return _agent.ReActAgent(
            name=agent.name,
            sys_prompt=agent._sys_prompt,
            model=model,
            formatter=_formatter_for(agent.formatter),
            toolkit=agent.toolkit,
            memory=_memory.InMemoryMemory(),
            parallel_tool_calls=agent.parallel_tool_calls,
            knowledge=list(agent.knowledge),
            enable_rewrite_query=agent.enable_rewrite_query,
            max_iters=agent.max_iters,
            compression_config=agent.compression_config,
        )

    async def play(self, made: Any, inputs: Any, before: list[Any], shadow: ShadowRun) -> Any:
        check_sandbox(shadow.guard.sandbox, _tool.Toolkit)
        made.toolkit = _ShadowToolkit(made.toolkit, shadow.guard, (made.finish_function_name, _EQUIP))
        made.toolkit.remove_tool_function(made.finish_function_name)  # it is a method of the other agent
        made.set_console_output_enabled(False)
        await made.memory.add(before)
        return await made(**inputs)

    async def ask(self, agent: Any, text: str, on_reply: OnReply) -> None:
        inputs = {"msg": _message.Msg("user", text, "user")}
        await on_reply(_Reply(agent, inputs, await agent(**inputs)))

    def conversation(self, agent: Any, messages: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        written = Conversation()
        written.say("system", agent.sys_prompt)
        for message in messages:
            for block in message.get_content_blocks():
                if block["type"] == "thinking":
                    written.think(block["thinking"])
                elif block["type"] == "tool_use":
                    written.call(block["id"], block["name"], block.get("raw_input") or json.dumps(block["input"]))
                elif block["type"] == "tool_result":
                    written.result(block["id"], block["name"], _parts(block["output"]))
                else:
                    written.say(message.role, _parts([block]))
            written.end()
        written.whole()
        return written.messages, written.thoughts

    async def tools(self, agent: Any) -> list[dict[str, Any]]:
        schemas: list[dict[str, Any]] = agent.toolkit.get_json_schemas()
        return schemas

    def names(self, agent: Any) -> tuple[str, str]:
        return agent.id, agent.model.model_name


def _formatter_for(given: Any) -> Any:
    """A formatter for OpenAI's API, which the trained model speaks."""
    if isinstance(given, (_formatter.OpenAIChatFormatter, _formatter.OpenAIMultiAgentFormatter)):
        return given
    several = "MultiAgent" in type(given).__name__
    return _formatter.OpenAIMultiAgentFormatter() if several else _formatter.OpenAIChatFormatter()


def _parts(content: Any) -> Any:
    """Blocks in OpenAI's shape; a plain text if all of them are texts."""
    if isinstance(content, str):
        return content
    if all(block["type"] == "text" for block in content):
        return "".join(block["text"] for block in content)
    return [{"type": "text", "text": block["text"]} if block["type"] == "text" else _data(block) for block in content]


def _data(block: Any) -> dict[str, Any]:
    source = block["source"]
    url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": block["type"], "file_data": url}}


ADAPTER = _Adapter1()
