"""Debug runs beside a real server that writes down what would reach AgentScope Studio."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.debug.studio import studio
from astune.errors import ConfigError
from astune.testing.chat_server import QuietServer

from .test_debug import CALL, conf, debug

__all__ = ["conf"]

USE = ("tool_use", "tool_result")
RUN = {"project": "math", "name": "math-debug", "run_id": "math-1"}


class FakeStudio:
    """Takes everything, as Studio does; `status` is what it answers."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, Any]] = []
        self.status = 200
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def sent(self, procedure: str) -> list[Any]:
        return [body for path, body in self.posts if path == f"/trpc/{procedure}"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        studio = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                studio.posts.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(studio.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[FakeStudio]:
    started = FakeStudio()
    yield started
    started.close()


def said(message: dict[str, Any]) -> list[Any]:
    """The message without its ids and times."""
    names = {
        "text": ("text",),
        "thinking": ("thinking",),
        "tool_use": ("name", "input"),
        "tool_result": ("name", "output"),
    }
    return [
        message["replyName"],
        *([block[name] for name in names[block["type"]]] for block in message["msg"]["content"]),
    ]


def test_a_run_and_its_messages_arrive(conf: Path, server: FakeStudio) -> None:
    answers = ["<think>\nEasy.\n</think>\n\n" + CALL, "It is 42.", "42"]
    debug(conf, answers, f"astune.debug.studio_url={server.url}/", "astune.debug.num_repeat=2")
    running, done = server.sent("registerRun")
    assert {key: running[key] for key in ("project", "name", "status")} == {
        "project": "astune",
        "name": "demo-debug",
        "status": "running",
    }
    assert done == running | {"status": "done"}
    messages = server.sent("pushMessage")
    assert [said(message) for message in messages] == [
        ["debug/a/0", ["Double 21."]],
        ["solver", ["Easy."], ["double", {"x": 21}]],
        ["solver", ["double", "[bold]42[/bold]"]],
        ["solver", ["It is 42."]],
        ["debug/a/1", ["Double 21."]],
        ["solver", ["42"]],
    ]
    ((use,), (result,)) = ([b for m in messages for b in m["msg"]["content"] if b["type"] == kind] for kind in USE)
    assert use["id"] == result["id"] == "c00000000", "Studio shows a result with its call"
    assert {message["runId"] for message in messages} == {running["id"]}
    assert len({message["msg"]["id"] for message in messages}) == 6
    assert len({message["replyId"] for message in messages}) == 4, "one reply for each agent of an episode"
    for message in messages:
        assert set(message["msg"]) == {"id", "name", "role", "content", "metadata", "timestamp"}


@pytest.mark.fault(
    "Foreign servers", "AgentScope Studio is gone in the middle of a run", "one warning; the episodes go on"
)
def test_an_episode_goes_on_when_studio_is_gone(server: FakeStudio, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "astune"), studio(server.url, **RUN) as shown:
        assert shown is not None
        server.close()
        for number in range(2):
            shown.question(f"e{number}", "q")
    assert [record.message.count("is gone") for record in caplog.records] == [1]


def test_a_message_that_studio_refuses_is_a_warning(server: FakeStudio, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "astune"), studio(server.url, **RUN) as shown:
        assert shown is not None
        server.status = 400
        shown.question("e0", "q")
        server.status = 200
        shown.question("e1", "half a pair: \ud83d")
    assert [record.message.count("refuses a message") for record in caplog.records] == [1]
    assert [message["replyName"] for message in server.sent("pushMessage")] == ["e0", "e1"]


def test_arguments_that_are_no_object_are_shown_as_text(server: FakeStudio) -> None:
    call = {"id": "c0", "function": {"name": "double", "arguments": "{broken"}}
    with studio(server.url, **RUN) as shown:
        assert shown is not None
        shown.answer("e", "solver", {"role": "assistant", "content": None, "tool_calls": [call]})
    assert said(server.sent("pushMessage")[0]) == ["solver", ["double", {"arguments": "{broken"}]]


def test_no_studio_is_found_out_before_anything_runs(conf: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match=rf"^astune\.debug\.studio_url: '{url}': no AgentScope Studio answers there"):
        debug(conf, [], f"astune.debug.studio_url={url}")


def test_another_server_is_no_studio(server: FakeStudio) -> None:
    server.status = 404
    with pytest.raises(ConfigError, match="answers, but not as an AgentScope Studio: HTTP 404"):
        studio(server.url, **RUN).__enter__()


@pytest.mark.parametrize("url", ["localhost:3000", "http://", "http://localhost:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"astune\.debug\.studio_url"):
        studio(url, **RUN).__enter__()
