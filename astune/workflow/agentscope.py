"""Models and outputs of AgentScope, 2.x or 1.x, whichever is installed.

What to know when an agent is trained on AgentScope 2.x (`training_defaults` takes care of the permission and the time):

- Tools ask for a permission by default. Nobody answers in a rollout: the agent ends at its first tool call
  without running it.
- The wall-clock time is injected into the conversation and stands in the prompt of a compression, so equal attempts
  see unequal prompts.
- Above 0.8 of the context size the agent compresses its history with a call of its own. It is a turn like any other,
  and the history after it is a new timeline.
- `AgenticMemoryMiddleware` tells the model how old its files are: another thing on another day.
- The default formatter leaves reasoning out of the next request. ASTune puts back what was sampled and the chat
  template decides, so a formatter that keeps it (`tuner.model("name", formatter=DeepSeekChatFormatter())`) changes
  nothing.
- `OpenAIMultiAgentFormatter` writes the conversation into one user message anew at every turn, so every turn is a
  timeline of its own. With the default formatter, agents that `observe` each other have one timeline each. They take
  no reasoning: hand on `UserMsg(name, reply.get_text_content())`, not the reply.
- `model.generate_structured_output`, and `agent.reply(structured_schema=...)` once `max_iters` is used up, force a
  tool call. Its beginning is put into the prompt and what follows is the policy's own.
- An agent keeps its history in `agent.state`: make one per episode.

On 1.x:

- `agent(msg, structured_model=...)` forces a tool call in every round until the output is there, then asks for a text
  in which no tool is to be called, with a hint that it takes out afterwards: two timelines.
- `model(..., structured_model=...)` (memory compression does it) forces JSON. The schema does not reach the policy:
  name the fields in the prompt. What does not fit is asked for again, as a tool call whose schema it sees.
- `OpenAIMultiAgentFormatter` and `PlanNotebook` rewrite the history at every turn, so that every turn becomes a
  timeline of its own. The hint of a `PlanNotebook` holds the time, unless it has a `plan_to_hint` that leaves it out.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module, metadata
from typing import Any

from astune.errors import MissingDependency, WorkflowError, nearest
from astune.types import WorkflowOutput
from astune.workflow.named_texts import CURRENT, SKILL
from astune.workflow.notes import Notes
from astune.workflow.tool_log import ToolLog, says_it_failed

MODEL_NAME = "policy"
"""The name that requests and answers carry. Nothing is chosen by it."""

_WAITING = "I'm waiting for your permission or the external execution to finish."
"""The reply of an AgentScope 2.x agent that stops at a permission question."""

NO_TIME = "unknown"
"""Stands where AgentScope 2.x writes the time."""

_FIXED = ("credential", "model", "model_name", "api_key", "organization", "client_type", "client_kwargs", "max_retries")
"""Arguments of `OpenAIChatModel` that decide where calls go; `tuner.model` sets them."""


def chat_model(client: Any, log: ToolLog, *, context_size: int | None, options: dict[str, Any]) -> Any:
    """The installed AgentScope's `OpenAIChatModel` on top of `client` (an `AsyncOpenAI`), without retries. On 2.x it
    tells `log` of the tool results that it is shown.

    2.x is told the size of the model's context, None if nobody knows it: there it compresses an agent's history.

    `options` are keyword arguments of `OpenAIChatModel`, for example `parameters` on 2.x or `generate_kwargs`
    on 1.x. Streaming is off unless they turn it on: nothing is shown, and 1.x cannot stream with newer clients.

    Raises:
        MissingDependency: AgentScope is not installed.
        WorkflowError: an option that `OpenAIChatModel` does not have, or that is not for the workflow to set.
    """
    major = major_version()
    model_class = import_module("agentscope.model").OpenAIChatModel
    logging.getLogger("as").addFilter(_is_worth_a_line)  # adding it again does nothing
    _check_options(options, model_class)
    # A client of AgentScope's own making would load certificates for a connection that is never opened.
    arguments: dict[str, Any] = {"stream": False, "client_kwargs": {"http_client": client._client}}
    if major == 1:
        arguments |= {"model_name": MODEL_NAME, "api_key": client.api_key}
    else:
        credential = import_module("agentscope.credential").OpenAICredential(api_key=client.api_key)
        arguments |= {"model": MODEL_NAME, "credential": credential, "max_retries": 0}
        arguments |= {} if context_size is None else {"context_size": context_size}
    model = model_class(**(arguments | options))
    model.client = client  # neither line takes a client that is made already
    if major == 2:
        _watch_tools(model, log)
    return model


def is_chat_model(value: object) -> bool:
    """True of a chat model object of the installed AgentScope."""
    return isinstance(value, import_module("agentscope.model").ChatModelBase)


def _watch_tools(model: Any, log: ToolLog) -> None:
    """Let a model of AgentScope 2.x tell `log` of the tool results in each request. Only its messages say whether a
    tool failed; the formatter makes texts of them."""
    call_api = model._call_api

    async def watch(model_name: str, messages: Any, tools: Any = None, *args: Any, **options: Any) -> Any:
        log.add_offered(tools or ())
        for message in messages:
            for result in message.get_content_blocks("tool_result"):
                log.add_result(result.id, result.name, _what_failed(result))
        return await call_api(model_name, messages, tools, *args, **options)

    model._call_api = watch


def _what_failed(result: Any) -> str | None:
    """The text of a failed tool result of AgentScope 2.x: the tool raised, was refused, could not take its arguments,
    or says that it failed. None if it did not fail."""
    output = result.output
    text = output if isinstance(output, str) else "\n".join(block.text for block in output if block.type == "text")
    return text if result.state in ("error", "denied") or says_it_failed(text) else None


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """True but for AgentScope's lines about a failed model call: in a rollout that ends the episode, and is counted."""
    return "attempt(s)" not in str(record.msg)


def training_defaults() -> dict[str, Any]:
    """Keyword arguments for AgentScope 2.x's `Agent` that make its rollouts run unattended and repeatable.

        agent = Agent(name="solver", system_prompt="...", model=tuner.model("solver"), **training_defaults())

    `state` allows every tool call without asking (so give the agent only tools that may run unattended: a run warns of
    those that act on this machine, see `agentscope_host_tools`), and `injection_config` keeps the wall-clock time out
    of the conversation; the prompt of a compression says that it is unknown, whatever `context_config` the agent has.
    New objects at every call.

    Raises:
        MissingDependency: AgentScope 2.x is not installed. On 1.x nothing asks and nothing is injected.
    """
    if major_version() == 1:
        raise MissingDependency(
            f"training_defaults() is for AgentScope 2.x; the installed {metadata.version('agentscope')} needs none."
        )
    permission = import_module("agentscope.permission")
    allowed = permission.PermissionContext(mode=permission.PermissionMode.BYPASS)
    return {
        "state": import_module("agentscope.state").AgentState(permission_context=allowed),
        "injection_config": import_module("agentscope.agent").InjectionConfig(
            inject_runtime_state=False, time_format=NO_TIME
        ),
    }


def convert_output(value: object) -> WorkflowOutput | None:
    """The output of AgentScope 1.x's tuner, or of `astune.tuner`, as ours; None if `value` is not one."""
    kind = type(value)
    if kind.__name__ != "WorkflowOutput" or not kind.__module__.startswith(("agentscope.tuner", "astune.tuner")):
        return None
    theirs: Any = value
    return WorkflowOutput(response=theirs.response, reward=theirs.reward, metrics=theirs.metrics or {})


def check_reply(answer: object, source: str) -> None:
    """Refuse the answer of an agent that stopped at a permission question.

    Raises:
        WorkflowError: naming `source` and what to change.
    """
    if type(answer).__module__.startswith("agentscope.message"):
        message: Any = answer
        answer = message.get_text_content()
    if isinstance(answer, str) and answer.strip() == _WAITING:
        raise WorkflowError(
            f"{source}: the agent asked for permission to run a tool and stopped, because nobody answers in a rollout. "
            "Give the agent `**training_defaults()` (from astune.workflow.agentscope), or its tool a permission."
        )


@functools.cache
def major_version() -> int:
    """The major version of the installed AgentScope. Raises MissingDependency."""
    try:
        return int(metadata.version("agentscope").split(".")[0])
    except metadata.PackageNotFoundError:
        raise MissingDependency(
            "tuner.model() and tuner.environment.toolkit() need AgentScope, which is not installed: "
            'pip install "astune[agentscope2]". '
            "Agents of other frameworks use tuner.openai_client() or tuner.base_url()."
        ) from None


def _check_options(options: dict[str, Any], model_class: Any) -> None:
    if not options:
        return
    known = [name for name in inspect.signature(model_class).parameters if name not in (*_FIXED, "kwargs")]
    for name in options:
        if name in _FIXED:
            raise WorkflowError(f"tuner.model() sets {name!r} itself. It takes: {', '.join(known)}.")
        if name not in known:
            raise WorkflowError(
                f"tuner.model() got {name!r}, which AgentScope {metadata.version('agentscope')}'s OpenAIChatModel "
                f"does not take.{nearest(name, known)} It takes: {', '.join(known)}."
            )


Tool = Mapping[str, Any]
Act = Callable[[str, Mapping[str, Any]], Awaitable[str]]
"""Runs the tool of that name with those arguments; returns the text of its result."""


def toolkit_of(tools: Sequence[Tool], act: Act) -> Any:
    """A new `Toolkit` of `tools`, all of which are run by `act`. Raises MissingDependency."""
    return _toolkit_1(tools, act) if major_version() == 1 else _toolkit_2(tools, act)


class WorkspaceTools:
    """Tools of a workspace of AgentScope 2.x, called as its agents call them. What was read, and may be edited, is that
    of one episode."""

    def __init__(self, toolkit: Any, definitions: Sequence[Tool]) -> None:
        self.definitions = {_name(tool): tool for tool in definitions}
        """In OpenAI's shape, by name."""
        self._toolkit = toolkit
        self._state = import_module("agentscope.state").AgentState()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """The text of the result, and whether the call failed."""
        call = import_module("agentscope.message").ToolCallBlock(id=name, name=name, input=json.dumps(arguments))
        result: Any = None
        async for each in self._toolkit.call_tool(call, self._state):
            result = each  # the last one is the whole
        if result.state == "interrupted":  # AgentScope goes on when it is cancelled
            raise asyncio.CancelledError
        texts = [block.text if block.type == "text" else f"[{block.type}: not shown]" for block in result.content]
        return "\n".join(texts), result.state in ("error", "denied")


async def open_workspace(workspace: Any) -> WorkspaceTools:
    """The tools of an object of AgentScope's."""
    toolkit = import_module("agentscope.tool").Toolkit(tools=await workspace.list_tools())
    return WorkspaceTools(toolkit, await toolkit.get_tool_schemas())


def _toolkit_2(tools: Sequence[Tool], act: Act) -> Any:
    module, permission = import_module("agentscope.tool"), import_module("agentscope.permission")
    allowed = permission.PermissionDecision(
        behavior=permission.PermissionBehavior.ALLOW, message="These tools act where the run says, and nobody is asked."
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


HOST_TOOLS = "tools that act on this machine: "
"""Begins the subject of the note about them."""
OF_2 = ("Bash", "PowerShell", "Write", "Edit")
OF_1 = ("execute_python_code", "execute_shell_command", "write_text_file", "insert_text_file")

_handed_out: ContextVar[frozenset[str]] = ContextVar("astune_host_tools", default=frozenset())


def host_tools(offered: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the `offered` tools, in OpenAI's shape, that act on this machine."""
    handed_out = _handed_out.get()
    return (
        [tool["function"]["name"] for tool in offered if tool["function"]["name"] in handed_out] if handed_out else []
    )


def note_host_tools(notes: Notes, episode_id: str, agent: str, offered: Sequence[Mapping[str, Any]]) -> None:
    """Warn once of tools that act on this machine."""
    if found := host_tools(offered):
        notes.once(
            f"{HOST_TOOLS}{', '.join(found)}",
            f"{episode_id}, agent {agent!r}: its tools {', '.join(found)} act on this machine, as the user who "
            "runs the training, with whatever the model writes; nothing asks before they run. Take them out, or "
            "give them a sandbox: on AgentScope 2.x the tools of tuner.workspace, or of another, or backend=",
        )


@functools.cache
def watch_toolkits() -> None:
    """Let toolkits of the installed AgentScope leave word, in this process and from now on. A second call does
    nothing."""
    module = import_module("agentscope.tool")
    if major_version() == 1:
        functions = [vars(module)[name] for name in OF_1]

        def of_1(toolkit: Any) -> Iterable[str]:
            return (name for name, tool in toolkit.tools.items() if tool.original_func in functions)

        module.Toolkit.get_json_schemas = _leaves_word(module.Toolkit.get_json_schemas, of_1)
    else:
        kinds = tuple(vars(module)[name] for name in OF_2 if name in vars(module))

        def of_2(toolkit: Any) -> Iterable[str]:
            tools = (tool for group in toolkit.tool_groups for tool in group.tools)
            return (
                tool.name
                for tool in tools
                if isinstance(tool, kinds) and isinstance(tool._backend, module.LocalBackend)
            )

        module.Toolkit.get_tool_schemas = _leaves_word(module.Toolkit.get_tool_schemas, of_2)
        viewer = import_module("agentscope.tool._builtin").SkillViewer
        viewer.call = _shows_named(viewer.call)


def _shows_named(written: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Let the viewer of skills show the text that the skill has by name, in place of its own."""

    @functools.wraps(written)
    async def call(self: Any, skill: str, *given: Any, **named: Any) -> Any:
        shown, texts = await written(self, skill, *given, **named), CURRENT.get()
        if texts is not None and shown.state != "error":
            shown.content[0].text = texts.ask(SKILL + skill, shown.content[0].text, {})
        return shown

    return call


def _leaves_word(written: Callable[..., Any], found: Callable[[Any], Iterable[str]]) -> Callable[..., Any]:
    @functools.wraps(written)
    def schemas(self: Any, *given: Any, **named: Any) -> Any:
        _handed_out.set(frozenset(found(self)))
        return written(self, *given, **named)

    return schemas
