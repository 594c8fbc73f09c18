"""A debug run in AgentScope Studio: its messages, and its OpenTelemetry traces, an episode each.

    with studio("http://localhost:3000", project="math", name="debug", run_id="math-1") as in_studio:
        with in_studio("debug/task-1/0", "What is 2 + 2?"):
            ...  # the episode

Agents need no change. On AgentScope 1.x they are told by the class hook and the settings that `agentscope.init` uses;
2.x has no word for Studio any more, so agents made meanwhile get AgentScope's `TracingMiddleware` and one that sends
their replies in the shape Studio knows from 1.x.

What Studio takes: `/trpc/registerRun` and `/trpc/pushMessage` (JSON; one more message with an old id replaces it) and
`/v1/traces` (OTLP over HTTP; `gen_ai.conversation.id` is the run).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from http.client import HTTPException
from importlib import import_module, metadata
from typing import Any

from astune.errors import ConfigError, MissingDependency

logger = logging.getLogger(__name__)

InStudio = Callable[[str, str], AbstractContextManager[None]]
"""Of an episode's id and its query: for the time of the episode."""

TIMEOUT = 5.0
"""Seconds for one request to Studio."""
EXPORT_EVERY = 500
"""Milliseconds after which finished spans are sent."""
HOOK = "astune_studio"


@contextmanager
def studio(url: str | None, *, project: str, name: str, run_id: str) -> Iterator[InStudio]:
    """Connect to the AgentScope Studio at `url` meanwhile; None does nothing. `run_id` must be new to Studio.

    Everything is taken back at the end, after what is pending was sent. (An OpenTelemetry provider cannot be: if there
    was none, one stays that sends nothing.) Enter it in the context that the episodes run in, or before the event loop
    starts. What Studio fails to take later on is a warning.

    Raises:
        ConfigError: no Studio answers at `url` (`astune.debug.studio_url`).
        MissingDependency: AgentScope is not installed.
    """
    if url is None:
        yield lambda episode_id, query: nullcontext()
        return
    connected = _agents1 if _agentscope_version().startswith("1.") else _agents2
    connection = _Connection(url, run_id)
    run = {"id": run_id, "project": project, "name": name, "timestamp": _now(), "pid": os.getpid(), "run_dir": ""}
    connection.register(run)
    try:
        with _tracing(connection) as tracer, connected(connection, run):
            yield functools.partial(_episode, connection, tracer)
    finally:
        connection.send("registerRun", run | {"status": "done"})
        connection.closed = True


class _Connection:
    """Messages to one run in Studio. Once it does not answer, no more are sent: nobody waits for each to fail."""

    def __init__(self, url: str, run_id: str) -> None:
        self.url, self.run_id = url.rstrip("/"), run_id
        self.closed = False

    def register(self, run: dict[str, Any]) -> None:
        """The first request, which tells whether there is a Studio."""
        where = f"astune.debug.studio_url: {self.url!r}"
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"{where} is not a URL; expected one like http://localhost:3000")
        try:
            self._post("registerRun", run | {"status": "running"})
        except urllib.error.HTTPError as error:
            raise ConfigError(f"{where} answers, but not as an AgentScope Studio: HTTP {error.code}") from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ConfigError(
                f"{where}: no AgentScope Studio answers there ({reason}). Start it (`as_studio`) or leave the key out."
            ) from None

    def push(self, reply_id: str, sender: str, role: str, message: dict[str, Any]) -> None:
        """Show `message` (AgentScope 1.x's) under the reply of `sender`."""
        reply = {"runId": self.run_id, "replyId": reply_id, "replyName": sender, "replyRole": role}
        self.send("pushMessage", reply | {"msg": message})

    def send(self, procedure: str, body: dict[str, Any]) -> None:
        if self.closed:
            return
        try:
            self._post(procedure, body)
        except urllib.error.HTTPError as error:
            logger.warning("AgentScope Studio at %s refuses a message: %s", self.url, error)
        except (OSError, HTTPException) as error:
            self.closed = True
            logger.warning("AgentScope Studio at %s is gone (%s): no more messages are sent", self.url, error)

    def _post(self, procedure: str, body: dict[str, Any]) -> None:
        data, headers = json.dumps(body, default=str).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/trpc/{procedure}", data, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            response.read()


@contextmanager
def _episode(connection: _Connection, tracer: Any, episode_id: str, query: str) -> Iterator[None]:
    """A message with the query, and a span that is the root of all spans of the episode."""
    unique = f"{connection.run_id}/{episode_id}"
    message = _message(unique, episode_id, "user", [{"type": "text", "text": query}], _now())
    connection.push(unique, episode_id, "user", message)
    attributes = {
        "gen_ai.operation.name": "invoke_generic_function",  # what AgentScope's own `@trace` says
        "agentscope.function.name": episode_id,
        "agentscope.function.input": json.dumps({"query": query}, ensure_ascii=False),
        "astune.episode_id": episode_id,
    }
    with tracer.start_as_current_span(episode_id, attributes=attributes):
        yield


@contextmanager
def _tracing(connection: _Connection) -> Iterator[Any]:
    """Send all spans that begin meanwhile to the run; a tracer for more."""
    processor = _span_processor(connection)
    provider = _tracer_provider()
    provider.add_span_processor(processor)
    try:
        yield provider.get_tracer("astune")
    finally:
        processor.shutdown()  # sends what is pending; a provider keeps its processors, so this one stays, deaf


def _tracer_provider() -> Any:
    """The process's own if it has set one up (spans then go where they went, too), else a new one."""
    trace, sdk = import_module("opentelemetry.trace"), import_module("opentelemetry.sdk.trace")
    provider = trace.get_tracer_provider()
    if not isinstance(provider, sdk.TracerProvider):
        provider = sdk.TracerProvider()
        trace.set_tracer_provider(provider)
    return provider


def _span_processor(connection: _Connection) -> Any:
    batch: Any = import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor
    exporter: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter

    class RunSpans(batch):  # type: ignore[misc]
        """Marks every span as the run's: Studio sorts by it, and AgentScope 2.x names its session there."""

        open = True

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if self.open:
                span.set_attribute("gen_ai.conversation.id", connection.run_id)

        def on_end(self, span: Any) -> None:
            if self.open:
                super().on_end(span)

        def shutdown(self) -> None:
            self.open = False
            super().shutdown()

    sender = exporter(endpoint=f"{connection.url}/v1/traces", timeout=TIMEOUT)
    return RunSpans(sender, schedule_delay_millis=EXPORT_EVERY)


@contextmanager
def _agents1(connection: _Connection, run: dict[str, Any]) -> Iterator[None]:
    """AgentScope 1.x: what `agentscope.init(studio_url=...)` sets, without its logger and its question to users."""
    config = import_module("agentscope")._config
    agent_class = import_module("agentscope.agent").AgentBase
    forward = import_module("agentscope.hooks").as_studio_forward_message_pre_print_hook
    settings = {"run_id": run["id"], "project": run["project"], "name": run["name"], "trace_enabled": True}
    before = {key: getattr(config, key) for key in settings}
    for key, value in settings.items():
        setattr(config, key, value)
    hook = functools.partial(forward, studio_url=connection.url, run_id=run["id"])
    agent_class.register_class_hook("pre_print", HOOK, hook)
    try:
        yield
    finally:
        agent_class.remove_class_hook("pre_print", HOOK)
        for key, value in before.items():
            setattr(config, key, value)


@contextmanager
def _agents2(connection: _Connection, run: dict[str, Any]) -> Iterator[None]:
    """AgentScope 2.x: every agent that is made meanwhile has two middlewares more, as OpenTelemetry's instrumentations
    of libraries do it."""
    agent_class: Any = import_module("agentscope.agent").Agent
    tracing = import_module("agentscope.middleware").TracingMiddleware
    plain = agent_class.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def traced(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        own = bound.arguments.get("middlewares") or []
        extra = [] if any(isinstance(each, tracing) for each in own) else [tracing()]
        bound.arguments["middlewares"] = [_message_middleware(connection), *extra, *own]
        plain(*bound.args, **bound.kwargs)

    agent_class.__init__ = traced
    try:
        yield
    finally:
        agent_class.__init__ = plain


def _message_middleware(connection: _Connection) -> Any:
    base: Any = import_module("agentscope.middleware").MiddlewareBase
    tool_result = import_module("agentscope.event").ToolResultEndEvent

    class StudioMessages(base):  # type: ignore[misc]
        """Sends the reply under way after each tool result and at its end."""

        async def on_reply(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Any) -> AsyncIterator[Any]:
            try:
                async with contextlib.aclosing(next_handler(**input_kwargs)) as events:
                    async for event in events:
                        if isinstance(event, tool_result):
                            _push_reply(connection, agent)
                        yield event
            finally:
                _push_reply(connection, agent)

    return StudioMessages()


def _push_reply(connection: _Connection, agent: Any) -> None:
    """What the agent has said of its present reply, which 2.x keeps as one message."""
    for message in agent.state.context[-1:]:
        if message.role == "assistant":
            content = [_block(block) for block in message.content]
            shown = _message(message.id, message.name, message.role, content, message.created_at)
            connection.push(message.id, agent.name, "assistant", shown)


def _block(block: Any) -> dict[str, Any]:
    """A content block of AgentScope 2.x as 1.x, and so Studio, has it."""
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type == "thinking":
        return {"type": "thinking", "thinking": block.thinking}
    if block.type == "tool_call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _arguments(block.input)}
    if block.type == "tool_result":
        output = block.output if isinstance(block.output, str) else [_block(each) for each in block.output]
        return {"type": "tool_result", "id": block.id, "name": block.name, "output": output}
    kind = block.source.media_type.split("/")[0] if block.type == "data" else None
    if kind in ("image", "audio", "video"):
        return {"type": kind, "source": block.source.model_dump(mode="json")}
    return {"type": "text", "text": f"[{kind or block.type}]"}


def _arguments(text: str) -> dict[str, Any]:
    """Arguments of a tool call; what is no JSON object stays text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _message(message_id: str, sender: str, role: str, content: list[dict[str, Any]], timestamp: str) -> dict[str, Any]:
    when = timestamp.replace("T", " ")[:23]
    return {"id": message_id, "name": sender, "role": role, "content": content, "metadata": {}, "timestamp": when}


def _now() -> str:
    """In AgentScope 1.x's format, milliseconds included."""
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _agentscope_version() -> str:
    try:
        return metadata.version("agentscope")
    except metadata.PackageNotFoundError:
        raise MissingDependency(
            'astune.debug.studio_url needs AgentScope, which is not installed: pip install "astune[agentscope2]"'
        ) from None
