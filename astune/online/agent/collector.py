"""`DataCollector`: records the conversations of any agent on any model, for the service or in a file."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from astune.errors import OnlineError, nearest
from astune.online.agent.client import OnlineClient, endpoint_of
from astune.online.agent.conversation import Conversation
from astune.online.agent.counts import CauseCounts
from astune.online.agent.functions import in_production
from astune.online.agent.outbox import Outbox
from astune.online.agent.shadow import shadow_run
from astune.online.agent.spool import Spool
from astune.online.agent.writes import RecordedTool
from astune.online.wire import RECORDS_PATH, ConversationRecord, read_wire

logger = logging.getLogger(__name__)

FIELDS = ("messages", "thoughts", "tool_calls", "rewards", "user_feedback")
_MOST_WAITING = 1_000
_MOST_REMEMBERED = 1_000
_Fields = dict[str, Any]
_Tools = Callable[[], Awaitable[list[dict[str, Any]]]]


class DataCollector:
    """Records conversations: messages, thoughts, tool calls, rewards and feedback.

        async with DataCollector("http://127.0.0.1:8010") as collector:
            collector.watch(agent)                              # from now on, each conversation after each reply
            ...
            collector.feedback(conversation_id, rating=4, comment="exact")

    Records go to the service at `endpoint`, or are appended to the JSON Lines file `path`, or both; with neither,
    `collect` just returns them. A conversation that goes on is recorded again as a whole: of several records with one
    `conversation_id` the last counts. `collect_fields` says what is left out, as `{"thoughts": False}`. It belongs to
    the event loop that started it, and production never waits for it. What is recorded for the service is kept in
    `spool`, a folder, until it is sent.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        path: str | Path | None = None,
        token: str | None = None,
        collect_fields: Mapping[str, bool] | None = None,
        spool: str | Path | None = None,
    ) -> None:
        self._left_out = _find_left_out(collect_fields or {})
        self._endpoint = endpoint_of(endpoint) if endpoint is not None else None
        self._path = Path(path) if path is not None else None
        self._token = token
        self._spool = Spool(Path(spool)) if spool is not None else None
        self._outbox: Outbox | None = None
        self._client: OnlineClient | None = None
        self._jobs: asyncio.Queue[tuple[_Fields, _Tools | None]] = asyncio.Queue(_MOST_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last: OrderedDict[str, _Fields] = OrderedDict()
        self.recorded = self.lost = 0
        self.trouble = CauseCounts()

    async def start(self) -> None:
        if self._task is not None:
            raise OnlineError("this DataCollector runs already")
        if self._endpoint is None and self._path is None:
            raise OnlineError("DataCollector: give the endpoint of the service, or the path of a file")
        self._loop = asyncio.get_running_loop()
        if self._endpoint is not None:
            self._client = OnlineClient(self._endpoint, token=self._token)
            self._outbox = Outbox(self._client, self._spool)
            self._outbox.start()
        self._task = asyncio.create_task(self._work(), name="astune-collector")

    async def stop(self, seconds: float = 60.0) -> None:
        """Write and send what waits, for at most `seconds` each."""
        if self._task is None:
            return
        with anyio.move_on_after(seconds):
            await self._jobs.join()
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        self.lost += self._jobs.qsize()
        if self._outbox is not None and self._client is not None:
            await self._outbox.close(seconds)
            await self._client.close()
        logger.info("conversations: %s", self.stats())

    async def __aenter__(self) -> DataCollector:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def watch(self, agent: Any, *, user: str | None = None) -> Any:
        """Record each conversation of an AgentScope agent after each reply; returns it. An agent on which a session is
        loaded for each request, as on AgentScope 1.x, is one conversation: use one agent for each session."""
        from astune.online.agent.agentscope import AgentReply, load_adapter

        adapter = load_adapter()

        async def on_reply(reply: AgentReply) -> None:
            if shadow_run() is not None:
                return
            try:
                before, new = await reply.messages()
                self._take(
                    self._of_agent(adapter, reply.agent, [*before, *new], user), lambda: adapter.tools(reply.agent)
                )
            except Exception as error:  # production goes on
                self._report_error(error)

        adapter.hear(agent, self, on_reply)
        return agent

    def wrap(self, function: Callable[..., Any], *, model: str | None = None) -> Callable[..., Any]:
        """`function(question, ...)` that returns a text: each call is a conversation of question, calls of
        `shadow_safe` tools, and answer."""

        def take_call(given: Any, answer: Any, calls: list[RecordedTool]) -> None:
            try:
                args, kwargs = given
                question = next(iter(inspect.signature(function).bind(*args, **kwargs).arguments.values()))
                self._take(_of_function(question, answer, calls, model), None)
            except Exception as error:  # production goes on
                self._report_error(error)

        return in_production(function, (), take_call)

    async def collect(
        self,
        agent: Any,
        user_input: str,
        *,
        user_feedback: Mapping[str, Any] | None = None,
        rewards: Mapping[str, float] | None = None,
        user: str | None = None,
    ) -> dict[str, Any]:
        """Ask an AgentScope agent, and record the conversation. Returns it: `conversation_id`, `messages`, `thoughts`,
        `tool_calls` as `{"tool", "args", "result"}`, `rewards`, `feedback` and `total_reward`.

        Raises:
            WireError: feedback or rewards that are none.
        """
        from astune.online.agent.agentscope import AgentReply, load_adapter

        adapter, heard = load_adapter(), list[_Fields]()

        async def on_reply(reply: AgentReply) -> None:
            before, new = await reply.messages()
            heard.append(self._of_agent(adapter, reply.agent, [*before, *new], user))

        await adapter.ask(agent, user_input, on_reply)
        fields = heard[-1] | {"tools": await adapter.tools(agent)}
        fields |= {"rewards": dict(rewards)} if rewards else {}
        fields |= {"feedback": dict(user_feedback)} if user_feedback else {}
        record = self._check(fields)
        if self._task is not None:
            self._take(fields, None)
        return trajectory(record)

    def record(self, **fields: Any) -> None:
        """Record a conversation of whatever agent, in the fields of `wire.ConversationRecord`. Raises WireError."""
        self._check(fields)
        self._take(fields, None)

    def feedback(self, conversation_id: str, *, rewards: Mapping[str, float] | None = None, **opinion: Any) -> None:
        """Say what a conversation was worth: named rewards, or `thumb`, `rating`, `comment`, `correction`.

        Raises:
            WireError: it is no feedback.
            OnlineError: the conversation is not among the last thousand.
        """
        if conversation_id not in self._last:
            raise OnlineError(f"no conversation {conversation_id!r} was recorded lately")
        said = {"rewards": dict(rewards)} if rewards else {}
        fields = self._last[conversation_id] | said | ({"feedback": opinion} if opinion else {})
        self._check(fields)
        self._take(fields, None)

    def stats(self) -> dict[str, int]:
        """`recorded` conversations; those `sent`, `waiting`, `refused` and `lost`; and how often recording failed."""
        outbox = self._outbox
        return {
            "recorded": self.recorded,
            "sent": outbox.sent if outbox else 0,
            "waiting": outbox.waiting if outbox else 0,
            "refused": outbox.refused.total if outbox else 0,
            "lost": self.lost + (outbox.lost if outbox else 0),
            "trouble": self.trouble.total,
        }

    def _of_agent(self, adapter: Any, agent: Any, messages: list[Any], user: str | None) -> _Fields:
        written, thoughts = adapter.conversation(agent, messages)
        conversation_id, model = adapter.names(agent)
        fields = {"conversation_id": conversation_id, "messages": written, "thoughts": thoughts, "model": model}
        return fields | ({"user": user} if user else {})

    def _check(self, fields: _Fields) -> ConversationRecord:
        return read_wire(ConversationRecord, _without(fields, self._left_out))

    def _take(self, fields: _Fields, tools: _Tools | None) -> None:
        """Queue a conversation, from any thread."""
        if self._loop is None or self._task is None:
            self.lost += 1
        elif asyncio._get_running_loop() is self._loop:
            self._queue(fields, tools)
        else:
            self._loop.call_soon_threadsafe(self._queue, fields, tools)

    def _queue(self, fields: _Fields, tools: _Tools | None) -> None:
        if self._jobs.full():
            self.lost += 1
            return
        self._last[fields["conversation_id"]] = fields
        self._last.move_to_end(fields["conversation_id"])
        if len(self._last) > _MOST_REMEMBERED:
            self._last.popitem(last=False)
        self._jobs.put_nowait((fields, tools))

    async def _work(self) -> None:
        while True:
            fields, tools = await self._jobs.get()
            try:
                if tools is not None:
                    fields["tools"] = await tools()
                record = self._check(fields)
                if self._path is not None:
                    await asyncio.to_thread(_append, self._path, json.dumps(record.to_json(), ensure_ascii=False))
                if self._outbox is not None:
                    await self._outbox.add(RECORDS_PATH, record)
                self.recorded += 1
            except Exception as error:  # one record's fault is not the next one's
                self.lost += 1
                self._report_error(error)
            finally:
                self._jobs.task_done()

    def _report_error(self, error: Exception) -> None:
        self.trouble.add(error)
        if self.trouble.counts[type(error).__name__] == 1:
            logger.warning("a conversation is not recorded, and production went on", exc_info=error)


def trajectory(record: ConversationRecord) -> dict[str, Any]:
    """A record with its tool calls in a list, and the sum of its rewards (None without any)."""
    body = record.to_json()
    results = {message["tool_call_id"]: message["content"] for message in body["messages"] if message["role"] == "tool"}
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    body["tool_calls"] = [
        {"tool": call["function"]["name"], "args": _arguments(call), "result": results.get(call["id"])}
        for call in calls
    ]
    body["total_reward"] = sum(record.rewards.values()) if record.rewards else None
    return body


def _arguments(call: Mapping[str, Any]) -> Any:
    """The arguments as an object; as the text if that is no JSON."""
    text = call["function"]["arguments"]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _of_function(question: Any, answer: Any, calls: list[RecordedTool], model: str | None) -> _Fields:
    written = Conversation()
    written.say("user", str(question))
    for number, call in enumerate(calls):
        call_id = f"call-{number}"
        written.call(call_id, call.name, json.dumps(call.arguments, default=repr))
        written.result(call_id, call.name, call.result if isinstance(call.result, str) else repr(call.result))
    written.say("assistant", str(answer))
    fields: _Fields = {"conversation_id": f"conv-{uuid.uuid4().hex}", "messages": written.messages}
    return fields | ({"model": model} if model else {})


def _find_left_out(collect_fields: Mapping[str, bool]) -> frozenset[str]:
    for name, wanted in collect_fields.items():
        if name not in FIELDS:
            raise OnlineError(f"collect_fields has no {name!r}.{nearest(name, FIELDS)} It has {', '.join(FIELDS)}.")
        if not isinstance(wanted, bool):
            raise OnlineError(f"collect_fields: {name!r} must be True or False, got {wanted!r}")
    if collect_fields.get("messages") is False:
        raise OnlineError("collect_fields: 'messages' cannot be left out; a conversation is its messages")
    return frozenset(name for name, wanted in collect_fields.items() if not wanted)


def _without(fields: _Fields, left_out: frozenset[str]) -> _Fields:
    kept = dict(fields)
    for name, key in (("thoughts", "thoughts"), ("rewards", "rewards"), ("user_feedback", "feedback")):
        if name in left_out:
            kept.pop(key, None)
    if "tool_calls" in left_out:
        kept.pop("tools", None)
        said = [{key: value for key, value in one.items() if key != "tool_calls"} for one in kept["messages"]]
        empty = [one["role"] == "assistant" and not one.get("content") for one in said]
        kept["messages"] = [one for one, no in zip(said, empty, strict=True) if one["role"] != "tool" and not no]
        kept.pop("thoughts", None)  # their steps count messages that are gone
    return kept


def _append(path: Path, line: str) -> None:
    """Append a line in one write, so that the lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)
