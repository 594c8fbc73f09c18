"""An agent deployed with the real agentscope-runtime: one changed address, or one line, and it is trained from.

It needs `pip install agentscope-runtime` beside AgentScope 1.x.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("agentscope_runtime")
from agentscope.pipeline import stream_printing_messages
from agentscope_runtime.engine.app import AgentApp

from astune.online import DataCollector, OnlineClient, SamplingRateStrategy, ShadowRun, TrainingRunner
from astune.testing import ScriptedOnlineService
from tests.online.agent.agents import Bank, call, clerk

logging.root.setLevel(logging.WARNING)  # the package turned on the logs of everybody

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the package's own


def documented() -> Any:
    """`deploy` of docs/online.md."""
    page = (Path(__file__).parents[3] / "docs/online.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python run agentscope=1\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names["deploy"]


def deployed(make_agent: Any) -> AgentApp:
    """As the package's own pages deploy an agent: a new one for each request."""
    app = AgentApp(app_name="clerk")

    @app.query(framework="agentscope")
    async def answer(self: Any, msgs: Any, request: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        agent = make_agent()
        async for message, last in stream_printing_messages(agents=[agent], coroutine_task=agent(msgs)):
            yield message, last

    return app


async def asked(app: AgentApp, path: str) -> str:
    """What a client of one of the endpoints is told: the text that was streamed."""
    text = {"role": "user", "content": [{"type": "text", "text": "Pay Ana 3."}]}
    if path != "/process":
        text["content"][0]["type"] = "input_text"
    inside = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=inside, base_url="http://app") as client:
        body = {"input": [text], "session_id": "s1", "user_id": "ana", "model": "clerk", "stream": True}
        response = await client.post(path, json=body)
        assert response.status_code == 200
        return response.text


def production(body: dict[str, Any]) -> Any:
    return "Paid." if body["messages"][-1]["role"] == "tool" else call("pay", {"to": "ana", "amount": 3})


@pytest.mark.parametrize("path", ["/process", "/compatible-mode/v1/responses"])
async def test_one_line_makes_shadows_and_records_of_a_deployed_agent(path: str) -> None:
    bank, runs = Bank(), list[ShadowRun]()
    live = ScriptedOnlineService(production)

    def score(run: ShadowRun) -> float:
        runs.append(run)
        return 0.5

    with ScriptedOnlineService(production) as service:
        options: dict[str, Any] = {"strategy": SamplingRateStrategy(1.0), "reward": score, "repeat_time": 2}
        runner = TrainingRunner(service.url, "policy", **options)
        async with DataCollector(service.url) as collector:
            told = await asked(documented()(AgentApp, runner, lambda: collector.watch(clerk(live, bank))), path)
    assert "Paid." in told
    assert bank.paid == [3.0], "a tool that writes ran in a shadow"
    assert [body["reward"] for body in service.feedback] == [0.5, 0.5]
    assert [[used["fate"] for used in run.tool_calls] for run in runs] == [["recorded"]] * 2
    assert [message["role"] for message in service.records[0]["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]


async def test_one_changed_address_lets_a_deployed_agent_learn_from_its_users() -> None:
    bank = Bank()
    with ScriptedOnlineService(production) as service:
        told = await asked(deployed(lambda: clerk(service, bank)), "/process")
        events = [json.loads(line[5:]) for line in told.splitlines() if line.startswith("data:")]
        assert any("Paid." in json.dumps(event) for event in events)
        async with OnlineClient(service.url) as client:
            await client.feedback(msg_ids=["msg-0", "msg-1"], thumb="up", user="ana")
    assert service.feedback == [{"msg_ids": ["msg-0", "msg-1"], "thumb": "up", "user": "ana"}]
    assert len(service.chats) == 2 and bank.paid == [3.0]
