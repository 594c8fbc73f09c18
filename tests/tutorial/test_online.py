"""The agent and its users of tutorial/online, with a service that answers from a script; the whole loop is in
`test_online_loop.py`."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from astune.testing.online_service import ScriptedOnlineService

pytest.importorskip("agentscope.middleware", reason="the agent is one of AgentScope 2.x")
from tutorial.math_agent.make_tasks import problems
from tutorial.online.agent import app
from tutorial.online.remarks import FLATTERY, PLEASED, Remarks
from tutorial.online.users import FLATTERER, Crowd, Habits, is_right


def answer(body: dict[str, Any]) -> str | dict[str, Any]:
    """Adds the first two numbers of the question with the tool, and says what comes out; to remarks it nods."""
    said = _text(body["messages"][-1])
    if body["messages"][-1]["role"] == "tool":
        return f"The answer is {said}."
    if len(re.findall(r"\d+", said)) < 2:
        return "I see."
    a, b = re.findall(r"\d+", said)[:2]
    call = {"name": "calculator", "arguments": json.dumps({"expression": f"{a} + {b}"})}
    return {"content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": call}]}


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def ask(service: ScriptedOnlineService, habits: Habits, log: Path, most: int = 12) -> list[dict[str, Any]]:
    """What the users wrote down when `most` of them had asked."""
    web = app(service.url)
    transport = httpx.ASGITransport(web, raise_app_exceptions=False)
    agent = httpx.AsyncClient(transport=transport, base_url="http://agent")
    async with web.router.lifespan_context(web), agent:
        crowd = Crowd(agent, habits, problems("train", 1), 1, log)
        await crowd.user(most)
        await crowd.the_rest()
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


async def test_a_thumb_says_of_the_last_reply_whether_it_was_right(tmp_path: Path) -> None:
    with ScriptedOnlineService(answer) as service:
        lines = await ask(service, Habits(), tmp_path / "users.jsonl")
    kinds = [problem.kind for problem in islice(problems("train", 1), 12)]
    assert [line["right"] for line in lines] == [kind == "join" for kind in kinds]
    assert [body["thumb"] for body in service.feedback] == ["up" if line["right"] else "down" for line in lines]
    assert [body["msg_ids"] for body in service.feedback] == [[line["message"]] for line in lines]
    last = [number for number, body in enumerate(service.chats) if body["messages"][-1]["role"] == "tool"]
    assert [line["message"] for line in lines] == [f"msg-{number}" for number in last]


async def test_users_may_be_wrong_silent_or_late(tmp_path: Path) -> None:
    with ScriptedOnlineService(answer) as service:
        lines = await ask(service, Habits(wrong=0.5, silent=0.5, late=0.5, late_by=4), tmp_path / "users.jsonl", 40)
    said = [line for line in lines if line["said"] is not None]
    assert 0 < len(said) < 40 and {(line["said"] == "up") == line["right"] for line in said} == {True, False}
    given = [body["msg_ids"][0] for body in service.feedback]
    assert sorted(given) == sorted(line["message"] for line in said)
    late = [line["message"] for line in said if line["late"]]
    prompt = [line["message"] for line in said if not line["late"]]
    assert [message for message in given if message in prompt] == prompt
    assert [message for message in given if message in late] == late and given != [line["message"] for line in said]


async def test_users_who_give_no_thumb_go_on_in_the_same_conversation(tmp_path: Path) -> None:
    habits = Habits(silent=0.3, remarks=Remarks(ironic=0.0, elsewhere=0.0), flatterer=0.3)
    with ScriptedOnlineService(answer) as service:
        lines = await ask(service, habits, tmp_path / "users.jsonl", 30)
    said = [line for line in lines if line["said"] is not None]
    assert service.feedback == [] and 0 < len(said) < len(lines) == 30
    honest = [line for line in said if line["user"] != FLATTERER]
    assert all((line["said"] in PLEASED) == line["right"] for line in honest)
    assert {line["said"] for line in said if line["user"] == FLATTERER and not line["right"]} == {FLATTERY}
    last = [_text(body["messages"][-1]) for body in service.chats]
    before = [body["messages"][-2] for body, text in zip(service.chats, last, strict=True) if text == FLATTERY]
    assert before and all(message["role"] == "assistant" for message in before)


async def test_what_fails_is_written_down_and_the_next_user_asks(tmp_path: Path) -> None:
    with ScriptedOnlineService(answer) as service:
        service.fail["/v1/chat/completions"] += [400]
        service.fail["/feedback"] += [400]
        lines = await ask(service, Habits(), tmp_path / "users.jsonl", most=3)
    assert [line.get("failed") for line in lines] == ["/ask", None, "/thumb", None]
    assert len(service.feedback) == 1


@pytest.mark.parametrize(
    ("reply", "right"),
    [("The answer is 12.", True), ("The answer is 12", True), ("The answer is 12.5.", False), ("12", False)],
)
def test_only_the_whole_number_is_right(reply: str, right: bool) -> None:
    assert is_right(reply, 12) is right
