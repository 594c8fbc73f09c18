"""What goes over the wire is what the page and the schema say."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from astune.environment.protocol import CALLS, ERRORS, Created, Failure, StepRequest, parse, read_action
from astune.plugins import load_plugin
from astune.testing import EnvServer
from tests.environment.rooms import Rooms
from tests.rows import each_row

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "environment_service.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\S+)([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_schema_is_that_of_the_code() -> None:
    schema = load_plugin(f"{DOCS / 'write_env_schema.py'}:schema", kind="script")
    written = json.loads((DOCS / "environment_service.schema.json").read_text(encoding="utf-8"))
    assert written == schema(), "run: python docs/write_env_schema.py"
    assert {f"{call}.{what}" for call in CALLS for what in ("request", "reply")} < set(written["$defs"])


def test_the_page_has_a_row_for_every_error() -> None:
    assert re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE) == [
        (str(status), code, meaning) for code, (status, meaning) in ERRORS.items()
    ]


def test_the_pages_commands_get_the_replies_that_it_shows(tmp_path: Path) -> None:
    """Each `curl` of the page, in order, against the page's own environment."""
    (tmp_path / "guess.py").write_text(next(text for _, more, text in BLOCKS if "file=guess.py" in more))
    environment = load_plugin(f"{tmp_path}/guess.py:Guess", kind="environment")()
    curls = [
        (text, shown)
        for (_, _, text), (_, _, shown) in pairwise(BLOCKS)
        if text.startswith("curl") and shown.startswith("{")
    ]
    called = []
    with EnvServer([environment]) as server:
        for text, shown in curls:
            for command, expected in zip(text.splitlines(), shown.splitlines(), strict=True):
                words = shlex.split(command)
                headers = dict(words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H")
                url = words[1].replace("http://127.0.0.1:8080", server.url)
                reply = httpx.post(url, content=words[words.index("-d") + 1], headers=headers).text
                assert re.fullmatch(re.escape(expected).replace(r"\.\.\.", r"[\d.]+"), reply), command
                called.append(url.rpartition("/")[2])
    assert set(called) == set(CALLS)


def test_the_page_has_an_environment_of_at_most_30_lines() -> None:
    text = next(text for _, more, text in BLOCKS if "file=guess.py" in more)
    assert len([line for line in text.splitlines() if line.strip()]) <= 30


@each_row(
    ("message", "text", "calls"),
    [
        ({"content": "hi"}, "hi", []),
        ({"role": "assistant", "content": None}, "", []),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}, "ab", []),
        ([{"role": "system", "content": "?"}, {"content": "last"}], "last", []),
        ({"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": ""}}]}, "", [("x", "f", {})]),
        ({"tool_calls": [{"id": "x", "function": {"name": "f"}}], "reasoning": 1}, "", [("x", "f", {})]),
        (
            {
                "content": "so",
                "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            "so",
            [("x", "f", {"a": 1})],
        ),
    ],
)
def test_messages_in_openais_shape_become_actions(message: Any, text: str, calls: list[Any]) -> None:
    request = parse(StepRequest, json.dumps({"instance_id": "i", "messages": message}).encode())
    action = read_action(request.messages)
    assert not isinstance(action, tuple)
    assert action.text == text
    assert [(call.id, call.name, call.arguments) for call in action.tool_calls] == calls


def test_null_stands_for_what_a_call_does_not_need() -> None:
    nothing = dict.fromkeys(("env_type", "task_id", "instance_id", "messages", "params"))
    with EnvServer([Rooms()]) as server:

        def post(call: str, **fields: Any) -> Any:
            return httpx.post(f"{server.url}/{call}", json={**nothing, **fields}).json()

        assert post("get_env_profile")["data"] == ["a", "b", "c"]
        Created.model_validate(post("create", task_id="a", instance_id="i")["data"])
        assert post("step", instance_id="i", messages={"content": "ä😀"})["data"]["state"][0]["content"] == "ä😀 1"
        assert post("evaluate", instance_id="i")["data"] == 0.1
        assert post("get_info")["data"] == {"env_type": "rooms"}
        assert post("release", instance_id="i")["data"] is True
        assert Failure.model_validate(post("release")).error.code in ERRORS
