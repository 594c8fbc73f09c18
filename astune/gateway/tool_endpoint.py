"""Tools of one episode over MCP's streamable HTTP, without streams: each request has one answer in JSON, which the
protocol allows. Clients of any framework, process and language take it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from astune.support.http.service import BodyTooLarge, HttpError, json_response, parse_json, read_body
from astune.version import __version__

MOST_BYTES = 16 * 2**20
PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Versions that are spoken, the newest first; a client that wants another is offered the first."""
METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS, INTERNAL = -32601, -32600, -32602, -32603
Call = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, tuple[str, bool]]]
"""Calls a tool: the text of its result, and whether it is an error."""


@dataclass(frozen=True)
class ToolEndpoint:
    """The tools of one episode, as `tools/list` has them, and what calls them."""

    tools: Sequence[Mapping[str, Any]]
    call: Call

    async def answer(self, request: Request) -> Response:
        """The answer to one message of the protocol. Raises HttpError for a body that is none."""
        try:
            message = parse_json(await read_body(request, MOST_BYTES))
        except BodyTooLarge as error:
            raise HttpError(413, "request_too_large", f"the body has {error}") from None
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            return _error(None, INVALID_REQUEST, "expected one request of JSON-RPC 2.0 as an object")
        if "id" not in message:  # a notification
            return Response(status_code=202)
        parameters = message.get("params") or {}
        if not isinstance(parameters, dict):
            return _error(message["id"], INVALID_PARAMS, f"params: expected an object, got {parameters!r:.100}")
        answers: dict[str, Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]] = {
            "initialize": self._initialize,
            "ping": _ping,
            "tools/list": self._list,
            "tools/call": self._call,
        }
        answer = answers.get(message["method"])
        if answer is None:
            return _error(message["id"], METHOD_NOT_FOUND, f"no method {message['method']!r:.100}")
        try:
            return json_response({"jsonrpc": "2.0", "id": message["id"], "result": await answer(parameters)})
        except ValueError as error:
            return _error(message["id"], INVALID_PARAMS, str(error))
        except asyncio.CancelledError:
            return _error(message["id"], INTERNAL, "the episode is over")

    async def _initialize(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = parameters.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "astune", "version": __version__},
        }

    async def _list(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"tools": list(self.tools)}

    async def _call(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        name, arguments = parameters.get("name"), parameters.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError("expected name, a text, and arguments, an object")
        text, failed = await self.call(name, arguments)
        return {"content": [{"type": "text", "text": text}], "isError": failed}


async def _ping(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


def _error(message_id: object, code: int, text: str) -> Response:
    return json_response({"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}})
