"""A chat API that answers from a script: an auxiliary model without a model."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = str | int | Mapping[str, Any]


class QuietServer(ThreadingHTTPServer):
    """An HTTP server that makes no words about clients that hang up, and lets many connect at once."""

    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class ScriptedChatServer:
    """An OpenAI-compatible chat API on this machine that gives the answers of a list in turn, or what a function of
    the request says.

        with ScriptedChatServer(["Hello", 429]) as server:
            model = AuxiliaryModelConfig(base_url=server.base_url, model="scripted")
        server.requests     # the request bodies

    A text is the content of the answer, a number an HTTP error, a mapping the whole response body. A list that is
    used up gives error 500, and so does a function that raises or returns anything else, with the reason.
    `GET /models` lists `models`; without any there is no such list, as with some APIs. `usage=True` reports tokens
    with every text: its words, and those of the request's messages. A request with `stream` gets its answer as events.
    `headers` go with every response. Port 0 is any free one.
    """

    def __init__(
        self,
        answers: Sequence[Script] | Callable[[dict[str, Any]], Script],
        *,
        models: Sequence[str] = (),
        usage: bool = False,
        headers: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._answers = answers
        self._models = models
        self._usage = usage
        self._sent_headers = dict(headers or {})
        self._lock = threading.Lock()
        self._server = QuietServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ScriptedChatServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, body: dict[str, Any], headers: Message) -> tuple[int, dict[str, Any]]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append({name.lower(): value for name, value in headers.items()})
        if callable(self._answers):
            try:
                answer = self._answers(body)
                json.dumps(answer)
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]  # the innermost line of the script
                told = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
                return 500, _make_error(f"the script failed on request {number + 1}: {told}")
        else:
            answer = self._answers[number] if number < len(self._answers) else 500
        if isinstance(answer, int):
            return answer, _make_error(f"scripted error {answer}")
        if isinstance(answer, str):
            reported: dict[str, Any] = {}
            if self._usage:
                prompt = sum(len(str(message["content"]).split()) for message in body["messages"])
                words = len(answer.split())
                usage = {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
                reported["usage"] = usage
            return 200, chat_completion({"content": answer}, **reported)
        if not isinstance(answer, Mapping):
            said = (
                f"the script answered request {number + 1} with {answer!r:.200}; expected a text, a number or a mapping"
            )
            return 500, _make_error(said)
        return 200, dict(answer)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer, models, headers = self._answer, self._models, self._sent_headers

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name is http.server's
                try:
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
                except ValueError as error:
                    self._send(400, json.dumps(_make_error(f"the request is no JSON: {error}")))
                    return
                status, response = answer(body, self.headers)
                if body.get("stream") and status == 200:
                    events = [*(f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks_of(response)), "data: [DONE]\n\n"]
                    self._send(status, "".join(events), "text/event-stream")
                else:
                    self._send(status, json.dumps(response))

            def do_GET(self) -> None:  # the name is http.server's
                listed = [{"id": name, "object": "model", "created": 0, "owned_by": "scripted"} for name in models]
                missing = _make_error("not found")
                found = {"object": "list", "data": listed} if models else missing
                self._send(200 if models else 404, json.dumps(found))

            def _send(self, status: int, text: str, kind: str = "application/json") -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


def _chunks_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A response body as it is streamed: the message, then the tokens."""
    common = {**response, "object": "chat.completion.chunk", "choices": []}
    usage = common.pop("usage", None)
    entries = [
        {"index": entry["index"], "delta": entry["message"], "finish_reason": entry["finish_reason"]}
        for entry in response["choices"]
    ]
    last = [] if usage is None else [{**common, "usage": usage}]
    return [{**common, "choices": entries}, *last]


def _make_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "scripted", "code": None}}


def chat_completion(
    message: Mapping[str, Any], *, finish_reason: str = "stop", choice: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A response body; `choice` and `fields` are further fields of the choice and of the body."""
    entry = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason, **(choice or {})}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [entry], **fields}
