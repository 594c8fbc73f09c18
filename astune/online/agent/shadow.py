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

from astune.clients.openai_http import http_library
from astune.online.agent.selection import RequestContext
from astune.online.agent.writes import RecordedTool, WriteGuard
from astune.online.wire import CONVERSATION_HEADER, RUN_HEADER, TASK_HEADER

_ANSWERS = ("/chat/completions", "/completions", "/responses")


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
    """What a reward is computed from, and what a run is played with.

    `output` is what production answered, `result` what the trained model's run did (None while it is under way).
    `msg_ids` are the ids of its replies. `agent` is the clone, None where there is only a function.
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
        """Name, arguments and fate ("ran", "recorded", "sandbox", "refused") of each."""
        return [{"name": use.name, "arguments": use.arguments, "fate": use.fate} for use in self.guard.uses]

    @property
    def headers(self) -> dict[str, str]:
        """For clients that are not made here."""
        conversation = f"{self.task_id}/{self.run_id}"
        return {TASK_HEADER: self.task_id, RUN_HEADER: self.run_id, CONVERSATION_HEADER: conversation}

    @functools.cached_property
    def client(self) -> openai.AsyncOpenAI:
        """Of the trained model. The ids of its replies are kept."""
        return openai.AsyncOpenAI(http_client=self.clients.watched(self), **self._client_options())

    @functools.cached_property
    def sync_client(self) -> openai.OpenAI:
        return openai.OpenAI(http_client=self.clients.watched_sync(self), **self._client_options())

    def _client_options(self) -> dict[str, Any]:
        return {
            "api_key": self.clients.token or "none",
            "base_url": f"{self.clients.endpoint}/v1",
            "default_headers": self.headers,
            "timeout": self.clients.timeout,
        }

    async def close(self) -> None:
        """Ends its connections, those of a thread that goes on included. Each run has its own, as a pool of httpx does
        not get over requests that are cancelled."""
        made = vars(self)
        if "client" in made:
            await self.client.close()
        if "sync_client" in made:
            self.sync_client.close()

    def saw(self, msg_id: str) -> None:
        """Keep the id of a reply, for clients that are not made here."""
        if msg_id not in self.msg_ids:
            self.msg_ids.append(msg_id)


Play = Callable[[ShadowRun], Awaitable[Any]]
"""Plays a request again; returns the answer."""


class Watcher(Protocol):
    """What a hook in production tells of requests. Nothing here raises."""

    def selected(self, agent: Any, inputs: Any, output: Any) -> RequestContext | None:
        """What is known of the request if it is to be played again, else None."""

    def offer(self, request: Request, play: Play) -> None: ...

    def skip(self, why: str) -> None:
        """A selected request cannot be played again."""

    def trouble(self, error: Exception) -> None: ...


_SHADOW: ContextVar[ShadowRun | None] = ContextVar("astune_shadow_run", default=None)


def shadow_run() -> ShadowRun | None:
    """The shadow run that this code is part of; None in production."""
    return _SHADOW.get()


@contextmanager
def as_shadow(run: ShadowRun) -> Iterator[None]:
    """Code within is part of `run`."""
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

    def watched(self, run: ShadowRun) -> Any:
        async def look(response: Any) -> None:
            if response.request.url.path.endswith(_ANSWERS) and response.is_success:
                await response.aread()  # a stream too: nobody looks on
                _keep_ids(run, response.text)

        hooks = {"response": [look]}
        return self._library.AsyncClient(verify=self._verify, event_hooks=hooks, timeout=self.timeout)

    def watched_sync(self, run: ShadowRun) -> Any:
        def look(response: Any) -> None:
            if response.request.url.path.endswith(_ANSWERS) and response.is_success:
                response.read()
                _keep_ids(run, response.text)

        hooks = {"response": [look]}
        return self._library.Client(verify=self._verify, event_hooks=hooks, timeout=self.timeout)


def _keep_ids(run: ShadowRun, text: str) -> None:
    for event in _events(text):
        inner = event.get("response")  # of a stream of /v1/responses
        for found in (event.get("id"), inner.get("id") if isinstance(inner, Mapping) else None):
            if isinstance(found, str) and found:
                run.saw(found)


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    """The JSON object that `text` is, or those of its `data:` lines."""
    parts = [text] if text.lstrip()[:1] == "{" else [line[5:] for line in text.splitlines() if line[:5] == "data:"]
    for part in parts:
        try:
            event = json.loads(part)
        except ValueError:  # `[DONE]`
            continue
        if isinstance(event, Mapping):
            yield event
