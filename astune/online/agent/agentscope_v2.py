"""`Agent` of AgentScope 2.x. A hook is a middleware; a second hook of the same listener replaces the first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Any

from astune.errors import OnlineError
from astune.online.agent.agentscope import OnReply, check_kind, check_sandbox
from astune.online.agent.conversation import Conversation
from astune.online.agent.shadow import ShadowRun
from astune.online.agent.writes import REFUSAL, RecordedTool, ToolDecision, WriteGuard, is_read_only

_agent: Any = import_module("agentscope.agent")
_message: Any = import_module("agentscope.message")
_permission: Any = import_module("agentscope.permission")
_state: Any = import_module("agentscope.state")
_tool: Any = import_module("agentscope.tool")
_MiddlewareBase: Any = import_module("agentscope.middleware").MiddlewareBase

_CHAINS = ("reply", "reasoning", "check_permission", "acting", "model_call", "system_prompt", "compress_context")
_OWN_TOOLS = ("agentscope.tool._task", "agentscope.tool._builtin._meta", "agentscope.agent")
"""Modules of AgentScope's tools that change only the state of the agent; a clone has its own."""
_COMPRESS = "CompressContext"
_STRUCTURED = "GenerateStructuredOutput"


class _Reply:
    def __init__(self, agent: Any, inputs: Any) -> None:
        self.agent = agent
        self.inputs = inputs
        self.output: Any = None
        state = agent.state
        # A summary is shown to the model as a user's message.
        summary = [_message.UserMsg(name="user", content=state.summary)] if state.summary else []
        self._before = [*summary, *state.context]

    @property
    def unfinished(self) -> str | None:
        given = self.inputs.get("inputs")
        if given is not None and not isinstance(given, (_message.Msg, list)):
            return "it goes on with a reply that waited for somebody"
        if self.output is None:
            return "it has no answer"
        return "it waits for somebody" if self.agent.state.has_awaiting_tool_calls(self.agent.name) else None

    async def messages(self) -> tuple[list[Any], list[Any]]:
        known = {message.id for message in self._before}
        return self._before, [message for message in self.agent.state.context if message.id not in known]


class _ReplyListener(_MiddlewareBase):  # type: ignore[misc]  # a class of AgentScope, which mypy does not see
    def __init__(self, listener: object, on_reply: OnReply) -> None:
        self.listener = listener
        self._report = on_reply

    async def on_reply(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Any) -> AsyncIterator[Any]:
        reply = _Reply(agent, input_kwargs)
        async for item in next_handler():
            if isinstance(item, _message.Msg):
                reply.output = item
            yield item
        await self._report(reply)


class _Guarded(_MiddlewareBase):  # type: ignore[misc]  # as above
    """Stands between a clone and its tools."""

    def __init__(self, guard: WriteGuard) -> None:
        self._guard = guard
        self._reads: dict[str, bool] = {}

    async def on_check_permission(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Any) -> Any:
        call, tool = input_kwargs["tool_call"], input_kwargs["tool"]
        reads = call.name in self._guard.read_only or await _reads(tool, input_kwargs["tool_input"])
        self._reads[call.id] = reads
        if tool.is_external_tool:
            self._guard.decide(call.name, call.input, reads=False)
            return _decision("DENY", REFUSAL.format(name=call.name))
        if not reads:
            return _decision("ALLOW", "It does not run: the call is answered in its place.")
        decision = await next_handler()
        behavior = _permission.PermissionBehavior
        if decision.behavior in (behavior.ASK, behavior.PASSTHROUGH):
            return _decision("DENY", f"{call.name} needs a permission, and in a trial run nobody can be asked.")
        return decision

    async def on_acting(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Any) -> AsyncIterator[Any]:
        call, sandbox = input_kwargs["tool_call"], self._guard.sandbox
        inside = sandbox is not None and await sandbox.get_tool(call.name) is not None
        use = self._guard.decide(call.name, call.input, reads=self._reads[call.id], in_sandbox=inside)
        if use.decision == "ran":
            async for item in next_handler():
                yield item
        elif use.decision == "sandbox":
            async for item in sandbox.call_tool(call, agent.state):
                yield item
        else:
            chunk = _answer(use)
            yield chunk
            yield _tool.ToolResponse(id=call.id).append_chunk(chunk)


async def _reads(tool: Any, given: dict[str, Any]) -> bool:
    if type(tool).__module__.startswith(_OWN_TOOLS) or tool.name == _COMPRESS:
        return True
    marked = isinstance(tool, _tool.FunctionTool) and is_read_only(tool._func)
    return marked or bool(await tool.check_read_only(given))


def _decision(behavior: str, message: str) -> Any:
    return _permission.PermissionDecision(behavior=_permission.PermissionBehavior[behavior], message=message)


def _answer(use: ToolDecision) -> Any:
    if use.decision != "recorded":
        said = [_message.TextBlock(text=REFUSAL.format(name=use.name))]
        return _tool.ToolChunk(content=said, state=_message.ToolResultState.DENIED)
    block = use.result.model_copy(deep=True)
    output = [_message.TextBlock(text=block.output)] if isinstance(block.output, str) else block.output
    state = _message.ToolResultState(block.state)
    return _tool.ToolChunk(content=output, state=state, metadata=block.metadata)


class _Adapter2:
    def hear(self, agent: Any, listener: object, on_reply: OnReply) -> None:
        listeners = agent._reply_middlewares
        listeners[:] = [
            each for each in listeners if not (isinstance(each, _ReplyListener) and each.listener is listener)
        ]
        listeners.insert(0, _ReplyListener(listener, on_reply))

    def check(self, agent: Any, clone: Any, middlewares: Sequence[Any] | None) -> None:
        check_kind(agent, _agent.Agent, clone)
        if clone is not None:
            return
        middlewares_of = [one for name in _CHAINS for one in vars(agent)[f"_{name}_middlewares"]]
        has = {type(one).__name__ for one in middlewares_of if not isinstance(one, _ReplyListener)}
        if has and middlewares is None:
            raise OnlineError(
                f"{agent.name!r} has middlewares ({', '.join(sorted(has))}): say which of them a shadow has too, as "
                "watch(agent, middlewares=[...]), [] for none"
            )

    def tool_results(self, messages: Sequence[Any]) -> list[RecordedTool]:
        calls = {call.id: call for message in messages for call in message.get_content_blocks("tool_call")}
        results = [result for message in messages for result in message.get_content_blocks("tool_result")]
        finished = [result for result in results if result.id in calls and result.state in ("success", "error")]
        return [RecordedTool(calls[result.id].name, calls[result.id].input, result) for result in finished]

    def clone(self, agent: Any, model: Any, middlewares: Sequence[Any] | None) -> Any:
        state = _state.AgentState(permission_context=agent.state.permission_context.model_copy(deep=True))
        state.tool_context.activated_groups = list(agent.state.tool_context.activated_groups)
        return _agent.Agent(
            name=agent.name,
            system_prompt=agent._system_prompt,
            model=model,
            toolkit=_toolkit_like(agent.toolkit),
            middlewares=list(middlewares or ()),
            state=state,
            context_config=agent.context_config,
            react_config=agent.react_config,
            injection_config=agent.injection_config,
        )

    async def play(self, made: Any, inputs: Any, before: list[Any], shadow: ShadowRun) -> Any:
        check_sandbox(shadow.guard.sandbox, _tool.Toolkit)
        guarded = _Guarded(shadow.guard)
        made._acting_middlewares.insert(0, guarded)
        made._check_permission_middlewares.insert(0, guarded)
        made.state.context = before
        return await made.reply(**inputs)

    async def ask(self, agent: Any, text: str, on_reply: OnReply) -> None:
        inputs = {"inputs": _message.UserMsg(name="user", content=text)}
        reply = _Reply(agent, inputs)
        reply.output = await agent.reply(**inputs)
        await on_reply(reply)

    def conversation(self, agent: Any, messages: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        written = Conversation()
        written.say("system", agent._system_prompt)
        for message in messages:
            for block in message.content:
                if block.type == "thinking":
                    written.think(block.thinking)
                elif block.type == "tool_call":
                    written.call(block.id, block.name, block.input)
                elif block.type == "tool_result":
                    written.result(block.id, block.name, _parts(block.output))
                elif block.type == "hint":
                    written.say("user", _parts(block.hint))
                else:
                    written.say(message.role, _parts([block]))
            written.end()
        written.whole()
        return written.messages, written.thoughts

    async def tools(self, agent: Any) -> list[dict[str, Any]]:
        schemas: list[dict[str, Any]] = await agent.toolkit.get_tool_schemas(agent.state.tool_context.activated_groups)
        return schemas

    def names(self, agent: Any) -> tuple[str, str]:
        return agent.state.session_id, agent.model.model


def _toolkit_like(toolkit: Any) -> Any:
    """Make a toolkit with the same tools: a reply adds tools to its toolkit and removes them, so it is not shared."""
    (basic,) = [group for group in toolkit.tool_groups if group.name == "basic"]
    return _tool.Toolkit(
        tools=_lasting(basic.tools),
        skills_or_loaders=basic.skills_or_loaders,
        mcps=basic.mcps,
        tool_groups=[
            _tool.ToolGroup(
                name=group.name,
                description=group.description,
                instructions=group.instructions,
                tools=_lasting(group.tools),
                skills_or_loaders=group.skills_or_loaders,
                mcps=group.mcps,
            )
            for group in toolkit.tool_groups
            if group is not basic
        ],
        meta_tool_response_template=toolkit.meta_tool_response_template,
        skill_instruction_template=toolkit.skill_instruction_template,
    )


def _lasting(tools: Sequence[Any]) -> list[Any]:
    return [tool for tool in tools if tool.name not in (_STRUCTURED, _COMPRESS)]


def _parts(content: Any) -> Any:
    """Blocks in OpenAI's shape; a plain text if all of them are texts."""
    if isinstance(content, str):
        return content
    if all(block.type == "text" for block in content):
        return "".join(block.text for block in content)
    return [{"type": "text", "text": block.text} if block.type == "text" else _data(block) for block in content]


def _data(block: Any) -> dict[str, Any]:
    source = block.source
    url = str(source.url) if source.type == "url" else f"data:{source.media_type};base64,{source.data}"
    if source.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": block.name or source.media_type, "file_data": url}}


ADAPTER = _Adapter2()
