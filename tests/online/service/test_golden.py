"""Transcripts of what real clients send, byte for byte, and of what they get: `golden/*.json`.

Those of AgentScope Java have the headers of its two transports: chats go through the JDK's client, which offers HTTP/2
and sends head and body apart, feedback and commits through OkHttp.

After a change that is meant, `python -m tests.online.service.test_golden` writes the replies anew; read the difference.
"""

import json
import re
import socket
import tempfile
from http.client import HTTPResponse
from pathlib import Path

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.online.service.serving import OnlineService
from astune.testing import write_test_model_dir
from tests.online.service.conftest import configured, over_network, scripted
from tests.online.service.java import read_chat, read_status

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.json"))
KEPT_HEADERS = ("content-type", "x-accepted", "x-duplicate", "x-commit", "retry-after", "x-astune-version", "allow")
CALL = '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def answers(prompt: str) -> str:
    return CALL if "# Tools" in prompt and "<tool_response>" not in prompt else "It is 4."


def replies(calls: list[dict], chat_format: ChatFormat, folder: Path) -> list[dict]:
    """What the calls of a transcript get, one after the other. `{{id}}` in a body is the id of the last chat."""
    count, found, last = iter(range(1000)), [], ""
    service = OnlineService(
        configured(f"sqlite:///{folder}/golden.db"),
        scripted(chat_format, answers),
        token=lambda: f"{next(count):016x}",
        new_id=lambda: f"c-{next(count)}",
        clock=lambda: 1_000_000.0,
    )
    with over_network(service) as address, socket.create_connection(address, timeout=30) as connection:
        for call in calls:
            response = send(connection, call, last)
            text = re.sub(r'"(created|created_at|completed_at|made)":[0-9.]+', r'"\1":0', response.read().decode())
            headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
            if "allow" in headers:  # Starlette keeps them as a set
                headers["allow"] = ", ".join(sorted(headers["allow"].split(", ")))
            found.append({"status": response.status, "headers": headers, "body": text})
            last = re.search(r'"id":"((?:chatcmpl-|resp_)[^"]+)"', text).group(1) if '"id":"chatcmpl-' in text else last
    service.close()
    return found


def send(connection: socket.socket, call: dict, last: str) -> HTTPResponse:
    """Head and body in a packet each."""
    lines = [f"{call['method']} {call['path']} HTTP/1.1", f"Host: 127.0.0.1:{connection.getpeername()[1]}"]
    lines += [f"{name}: {value}" for name, value in (call.get("headers") or {}).items()]
    body = call.get("body", "").replace("{{id}}", last).encode()
    if body or call["method"] == "POST":
        lines.append(f"Content-Length: {len(body)}")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    connection.sendall(body)
    response = HTTPResponse(connection, method=call["method"])
    response.begin()
    return response


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_clients_get_what_they_always_got(file, chat_format, tmp_path):
    calls = json.loads(file.read_text())
    assert replies(calls, chat_format, tmp_path) == [call["reply"] for call in calls]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_java_client_takes_every_good_reply(file):
    ids = []
    for call in json.loads(file.read_text()):
        status, body = call["reply"]["status"], call["reply"]["body"].encode()
        if status >= 400:
            error = json.loads(body)["error"]
            assert set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str)
            if call["path"] in ("/feedback", "/commit"):  # Trinity's client reads it from an error, too
                assert json.loads(body)["status"] == "error" and json.loads(body)["message"] == error["message"]
        elif call["path"] in ("/feedback", "/commit"):
            assert read_status(status, body)["status"] == "success"
        elif call["path"] == "/v1/chat/completions" and '"stream":true' not in call["body"]:
            ids.append(read_chat(status, body)["id"])
    assert len(ids) == len(set(ids))


def test_the_strict_reader_refuses_what_java_refuses():
    with pytest.raises(AssertionError, match="UnrecognizedProperty"):
        read_status(200, b'{"status": "success", "accepted": 3}')
    with pytest.raises(AssertionError, match="RuntimeException: 400"):
        read_status(400, b'{"status": "success"}')
    with pytest.raises(AssertionError):
        read_chat(200, b'{"id": "x", "error": {"message": ""}}')


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chat_format = ChatFormat.load(write_test_model_dir(Path(folder)))
        for number, file in enumerate(FILES):
            calls, home = json.loads(file.read_text()), Path(folder) / str(number)
            home.mkdir()
            for call, reply in zip(calls, replies(calls, chat_format, home), strict=True):
                call["reply"] = reply
            file.write_text(json.dumps(calls, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
