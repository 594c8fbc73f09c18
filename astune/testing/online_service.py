"""The online service without a model: it answers from a script and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astune.gateway.http import answer_error
from astune.online.wire import (
    CHAT_PATH,
    COMMIT_PATH,
    FEEDBACK_PATH,
    HEALTH_PATH,
    RECORDS_PATH,
    Body,
    Commit,
    ConversationRecord,
    Feedback,
    WireError,
    read_wire,
)
from astune.support.http.browser_requests import Guarded
from astune.support.http.serving import ServerThread, bound_socket, server_config, url_of
from astune.testing.chat_server import chat_completion

Answer = str | dict[str, Any]
"""The content of the assistant's message, or the message itself, for tool calls."""


class ScriptedOnlineService:
    """`POST /v1/chat/completions`, `/feedback`, `/commit`, `/v1/astune/records` and `GET /health` at `url`.

        with ScriptedOnlineService(["Hello"]) as service:
            ...
        service.chats, service.feedback, service.commits, service.records      # bodies, in the order they came
        service.headers                                                         # of the chats

    Answers are those of a list in turn, or what a function of the request says; reply number n has the id `msg-n`,
    from 0. Bodies are read as the real service reads them; with `token`, nothing is answered without it.
    `service.app` answers in the process too.
    `service.fail[path]` is a list of HTTP errors to be given before any answer there; each says to come back at once.
    """

    def __init__(
        self, answers: Sequence[Answer] | Callable[[dict[str, Any]], Answer], *, token: str | None = None
    ) -> None:
        self.chats: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.feedback: list[dict[str, Any]] = []
        self.commits: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.fail: dict[str, list[int]] = defaultdict(list)
        self._answers = answers
        self._token = token
        self._lock = threading.Lock()
        self.app = Starlette(
            routes=[
                Route(CHAT_PATH, self._check(self._chat), methods=["POST"]),
                self._taking(FEEDBACK_PATH, Feedback, self.feedback),
                self._taking(COMMIT_PATH, Commit, self.commits),
                self._taking(RECORDS_PATH, ConversationRecord, self.records),
                Route(HEALTH_PATH, self._check(self._health), methods=["GET"]),
            ]
        )

    def __enter__(self) -> ScriptedOnlineService:
        listener = bound_socket("127.0.0.1", 0)
        self.url = url_of("127.0.0.1", listener)
        config = server_config(Guarded(self.app, answer_error), log_config=None)
        self._thread = ServerThread(config, listener, "astune-scripted-service")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.close(at_once=True)

    def _check(self, handle: Callable[[Any, Request], Response]) -> Any:
        async def check_and_handle(request: Request) -> Response:
            text = await request.body()
            if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
                return _error(401, "no token")
            with self._lock:
                if self.fail[request.url.path]:
                    return _error(self.fail[request.url.path].pop(0), "scripted failure")
                try:
                    return handle(json.loads(text) if text else None, request)
                except (WireError, LookupError) as error:
                    return _error(400, str(error))

        return check_and_handle

    def _taking(self, path: str, kind: type[Body], kept: list[dict[str, Any]]) -> Route:
        def take(body: Any, request: Request) -> Response:
            kept.append(read_wire(kind, body).to_json())
            return JSONResponse({"status": "success", "message": "kept"})

        return Route(path, self._check(take), methods=["POST"])

    def _health(self, body: Any, request: Request) -> Response:
        return JSONResponse({"state": "well", "version": 0})

    def _chat(self, body: Any, request: Request) -> Response:
        number = len(self.chats)
        self.chats.append(body)
        self.headers.append(dict(request.headers))
        answer = self._answers(body) if callable(self._answers) else self._answers[number]
        message = {"content": answer} if isinstance(answer, str) else answer
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        told = {**chat_completion(message, finish_reason=finish), "id": f"msg-{number}", "model": body.get("model")}
        told["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if not body.get("stream"):
            return JSONResponse(told)
        (choice,) = told["choices"]
        chunk = {**told, "object": "chat.completion.chunk", "choices": [{**choice, "delta": choice.pop("message")}]}
        return Response(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")


def _error(status: int, message: str) -> Response:
    body = {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
    return JSONResponse(body, status, headers={"retry-after": "0", "x-should-retry": "false"})
