"""The chat API of `astune.testing` where its script is wrong."""

import httpx
import pytest

from astune.testing import ScriptedChatServer
from tests.rows import each_row

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}


def raising(request):
    return {}["no such key"]


@pytest.mark.fault(
    "Foreign servers", "the script of a scripted chat server raises", "error 500 with the reason and the script's line"
)
@each_row(
    ("script", "reason"),
    [
        (raising, "the script failed on request 1: KeyError: 'no such key' ("),
        (lambda request: None, "the script answered request 1 with None; expected a text, a number or a mapping"),
        (lambda request: [1], "the script answered request 1 with [1]; expected"),
        (lambda request: {"choices": {1, 2}}, "the script failed on request 1: TypeError: Object of type set"),
        ([None], "the script answered request 1 with None"),
    ],
)
def test_a_script_that_is_wrong_is_an_error_500_with_the_reason(script, reason):
    with ScriptedChatServer(script) as server:
        reply = httpx.post(f"{server.base_url}/chat/completions", json=ASK)
    assert reply.status_code == 500
    assert reason in reply.json()["error"]["message"]


def test_a_request_that_is_no_json_is_an_error_400():
    with ScriptedChatServer(["Hello"]) as server:
        reply = httpx.post(f"{server.base_url}/chat/completions", content=b"{")
        assert httpx.post(f"{server.base_url}/chat/completions", json=ASK).status_code == 200
    assert reply.status_code == 400 and "no JSON" in reply.json()["error"]["message"]
