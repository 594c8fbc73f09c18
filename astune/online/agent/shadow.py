"""One shadow run: a request of production played again with the model that is trained."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import openai

from astune.clients.api import http_library
from astune.errors import OnlineError
from astune.online.agent.selection import RequestContext
from astune.online.agent.writes import RecordedTool, WriteGuard
from astune.online.wire import CONVERSATION_HEADER, RUN_HEADER, TASK_HEADER

ANSWERS = ("/chat/completions", "/completions", "/responses", "/messages")
"""Ends of the addresses at which a model answers."""


@dataclass(frozen=True, eq=False)
class Request:
    """A request that production has answered. `inputs` are copies, which each run copies again. Two are never equal."""

    task_id: str
    inputs: Any
    output: Any
    context: RequestContext
    recorded: tuple[RecordedTool, ...] = ()


@dataclass(eq=False)
class ShadowRun:
    """One run: the values that it is played with and that its reward is computed from.

    `output` is production's answer, `result` the answer of this run (None while it is under way). `msg_ids` are the ids
    of its replies. `agent` is the clone; None if there is only a function.
    """

    task_id: str
    run_id: str
    model: str
    inputs: Any
    output: Any
    context: RequestContext
    guard: WriteGuard
    clients: Clients
    sampling: Mapping[str, Any]
    result: Any = None
    agent: Any = None
    msg_ids: list[str] = field(default_factory=list)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Name, arguments and fate ("ran", "recorded", "sandbox", "refused") of each tool call."""
        return [{"name": use.name, "arguments": use.arguments, "fate": use.decision} for use in self.guard.uses]

    @property
    def headers(self) -> dict[str, str]:
        """Headers that name the run, for clients that are made elsewhere."""
        conversation = f"{self.task_id}/{self.run_id}"
        return {TASK_HEADER: self.task_id, RUN_HEADER: self.run_id, CONVERSATION_HEADER: conversation}

    @functools.cached_property
    def client(self) -> openai.AsyncOpenAI:
        """A client of the trained model that keeps the ids of its replies."""
        return openai.AsyncOpenAI(http_client=self.clients.make_client(self), **self._client_options())

    @functools.cached_property
    def sync_client(self) -> openai.OpenAI:
        return openai.OpenAI(http_client=self.clients.make_sync_client(self), **self._client_options())

    def _client_options(self) -> dict[str, Any]:
        return {
            "api_key": self.clients.token or "none",
            "base_url": f"{self.clients.endpoint}/v1",
            "default_headers": self.headers,
            "timeout": self.clients.timeout,
        }

    async def close(self) -> None:
        """Close its connections, also those of a thread that goes on. Each run has its own, as a pool of httpx does not
        recover from cancelled requests."""
        made = vars(self)
        if "client" in made:
            await self.client.close()
        if "sync_client" in made:
            self.sync_client.close()

    def saw(self, msg_id: str) -> None:
        """Keep the id of a reply; called for clients that are made elsewhere."""
        if msg_id not in self.msg_ids:
            self.msg_ids.append(msg_id)


Play = Callable[[ShadowRun], Awaitable[Any]]
"""Plays a request again; returns the answer."""


class Watcher(Protocol):
    """Hears of requests in production. No method raises."""

    def select_request(self, agent: Any, inputs: Any, output: Any) -> RequestContext | None:
        """The context of the request if it is to be played again, else None."""

    def offer(self, request: Request, play: Play) -> None: ...

    def skip(self, why: str) -> None:
        """Count a selected request that cannot be played again."""

    def report_error(self, error: Exception) -> None: ...


_SHADOW: ContextVar[ShadowRun | None] = ContextVar("astune_shadow_run", default=None)


def shadow_run() -> ShadowRun | None:
    """The shadow run that this code is part of; None in production."""
    return _SHADOW.get()


@contextmanager
def as_shadow(run: ShadowRun) -> Iterator[None]:
    """Make the code within a part of `run`."""
    token = _SHADOW.set(run)
    try:
        yield
    finally:
        _SHADOW.reset(token)


class Clients:
    """Makes connections to the trained model."""

    def __init__(self, endpoint: str, token: str | None, timeout: float) -> None:
        self.endpoint = endpoint
        self.token = token
        self.timeout = timeout
        self._library = http_library()
        secure = endpoint.startswith("https:")
        self._verify = self._library.create_ssl_context() if secure else False  # certificates are read once

    def make_client(self, run: ShadowRun) -> Any:
        async def look(response: Any) -> None:
            if response.request.url.path.endswith(ANSWERS) and response.is_success:
                await response.aread()  # a stream too: nobody looks on
                for found in ids_in(response.text):
                    run.saw(found)

        hooks = {"response": [look]}
        return self._library.AsyncClient(verify=self._verify, event_hooks=hooks, timeout=self.timeout)

    def make_sync_client(self, run: ShadowRun) -> Any:
        def look(response: Any) -> None:
            if response.request.url.path.endswith(ANSWERS) and response.is_success:
                response.read()
                for found in ids_in(response.text):
                    run.saw(found)

        hooks = {"response": [look]}
        return self._library.Client(verify=self._verify, event_hooks=hooks, timeout=self.timeout)


def ids_in(text: str) -> Iterator[str]:
    """The ids in the body of a reply; a stream repeats them."""
    for event in _events(text):
        inner = event.get("response") or event.get("message")  # of a stream of /v1/responses, of /v1/messages
        for found in (event.get("id"), inner.get("id") if isinstance(inner, Mapping) else None):
            if isinstance(found, str) and found:
                yield found


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    """The JSON object in `text`, or those in its `data:` lines."""
    parts = [text] if text.lstrip()[:1] == "{" else [line[5:] for line in text.splitlines() if line[:5] == "data:"]
    for part in parts:
        try:
            event = json.loads(part)
        except ValueError:  # `[DONE]`
            continue
        if isinstance(event, Mapping):
            yield event


_IDS: ContextVar[list[str] | None] = ContextVar("astune_message_ids", default=None)


@contextmanager
def collect_message_ids(*agents: Any) -> Iterator[list[str]]:
    """The ids of all replies that the models of these agents give to the code within, in their order.

        with collect_message_ids(agent) as msg_ids:
            answer = await agent.reply(UserMsg("ana", "One tea, please."))
        await client.feedback(msg_ids=msg_ids, thumb="up", user="ana")

    An agent or a model may answer several people at once: each list has what was asked within. Raises OnlineError for
    an agent whose model is none of OpenAI's API or Anthropic's.
    """
    for agent in agents:
        client = vars(agent.model).get("client")
        if not {each.__module__.partition(".")[0] for each in type(client).__mro__} & {"openai", "anthropic"}:
            raise OnlineError(
                f"the model of {agent.name!r} ({type(agent.model).__name__}) does not speak OpenAI's API or "
                "Anthropic's: the service knows none of its replies"
            )
        hooks = client._client.event_hooks
        if _look not in hooks["response"]:
            client._client.event_hooks = hooks | {"response": [*hooks["response"], _look]}
    ids: list[str] = []
    token = _IDS.set(ids)
    try:
        yield ids
    finally:
        _IDS.reset(token)


async def _look(response: Any) -> None:
    ids = _IDS.get()
    if ids is not None and response.request.url.path.endswith(ANSWERS) and response.is_success:
        await response.aread()  # the service sends a stream when the whole answer is there
        ids += [found for found in dict.fromkeys(ids_in(response.text)) if found not in ids]
