"""Show the messages of a debug run in AgentScope Studio, whatever framework the agents are written with.

Studio takes JSON: `/trpc/registerRun` begins and ends a run, `/trpc/pushMessage` shows one message of it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx

from astune.context_tracker.prompt.messages import parse_arguments, show_content
from astune.errors import ConfigError

logger = logging.getLogger(__name__)

TIMEOUT = 5.0
"""Seconds for one request to Studio."""

Block = Mapping[str, Any]


class Studio:
    """A run in Studio. Once it does not answer, no more is sent: nobody waits for each message to fail."""

    def __init__(self, client: httpx.Client, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._gone = False
        self._count = 0

    def question(self, episode_id: str, query: str) -> None:
        """Show the query of an episode."""
        self._push(episode_id, episode_id, "user", [{"type": "text", "text": query}])

    def answer(self, episode_id: str, agent: str, message: Mapping[str, Any]) -> None:
        """Show an answer that an agent gets from its model: an assistant message in OpenAI's shape, whose calls have
        ids."""
        blocks: list[Block] = []
        if message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": message["reasoning_content"]})
        if message.get("content"):
            blocks.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls") or ():
            name, text = call["function"]["name"], call["function"]["arguments"]
            arguments = parse_arguments(text)
            shown = {"arguments": text} if arguments is None else arguments
            blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": shown})
        self._push(episode_id, agent, "assistant", blocks)

    def tool_result(self, episode_id: str, agent: str, name: str, message: Mapping[str, Any]) -> None:
        """Show the result that the tool `name` gave an agent: a message of role `tool` in OpenAI's shape."""
        block = {"type": "tool_result", "id": str(message.get("tool_call_id", "")), "name": name}
        self._push(episode_id, agent, "assistant", [block | {"output": show_content(message)}])

    def send(self, procedure: str, body: Mapping[str, Any]) -> None:
        if self._gone:
            return
        try:
            _post(self._client, procedure, body)
        except httpx.HTTPStatusError as error:
            logger.warning("AgentScope Studio at %s refuses a message: %s", self._client.base_url, error)
        except httpx.HTTPError as error:
            self._gone = True
            logger.warning("AgentScope Studio is gone (%s): no more messages are sent", error)

    def _push(self, episode_id: str, sender: str, role: str, content: list[Block]) -> None:
        self._count += 1
        message = {"id": f"{self._run_id}/{self._count}", "name": sender, "role": role, "content": content}
        # Studio shows messages of one reply together: here all that an agent says in an episode.
        reply = {"replyId": f"{self._run_id}/{episode_id}/{sender}", "replyName": sender, "replyRole": role}
        self.send(
            "pushMessage", {"runId": self._run_id, **reply, "msg": message | {"metadata": {}, "timestamp": _now()}}
        )


@contextmanager
def studio(url: str | None, *, project: str, name: str, run_id: str) -> Iterator[Studio | None]:
    """A run in the AgentScope Studio at `url`; None where there is no URL. `run_id` must be new to Studio.

    Raises:
        ConfigError: no Studio answers at `url` (`astune.debug.studio_url`).
    """
    if url is None:
        yield None
        return
    run = {"id": run_id, "project": project, "name": name, "timestamp": _now(), "pid": os.getpid(), "run_dir": ""}
    where = f"astune.debug.studio_url: {url!r}"
    with httpx.Client(timeout=TIMEOUT) as client:
        try:
            client.base_url = httpx.URL(f"{url.rstrip('/')}/trpc/")
            _post(client, "registerRun", run | {"status": "running"})
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            raise ConfigError(f"{where} answers, but not as an AgentScope Studio: HTTP {status}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"{where}: no AgentScope Studio answers there ({error}). Start it (`as_studio`) or leave the key out."
            ) from None
        shown = Studio(client, run_id)
        try:
            yield shown
        finally:
            shown.send("registerRun", run | {"status": "done"})


def _post(client: httpx.Client, procedure: str, body: Mapping[str, Any]) -> None:
    """In ASCII, as a text may hold half of a surrogate pair, which UTF-8 does not take."""
    headers = {"Content-Type": "application/json"}
    client.post(procedure, content=json.dumps(body), headers=headers).raise_for_status()


def _now() -> str:
    """In AgentScope 1.x's format, milliseconds included."""
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
