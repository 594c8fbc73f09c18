"""The agent in production: AgentScope, a calculator, and a small web service in front of it.

    python tutorial/online/agent.py --endpoint http://127.0.0.1:8010 --port 8020

    POST /ask    {"question": "Theo owns 87 tickets. ...", "user": "ana"}   ->  {"answer", "message", "conversation"}
    POST /thumb  {"message": "chatcmpl-...", "thumb": "up", "user": "ana"}, or "correction" in the place of "thumb"

Three things are there for online training: the model's address, `collect_message_ids`, which tells the id of its reply,
and `/thumb`, which hands on what the user said of it. A question with the `conversation` of an answer goes on from it.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from astune.online import collect_message_ids

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_agent"))
from calculator import calculator

SYSTEM_PROMPT = "Use the calculator. End with: The answer is N."
MOST_AGENTS = 1000
"""Conversations that may go on: the last so many."""


@dataclass(frozen=True)
class Service:
    """The web service. `http` is its connection to the model's `endpoint`."""

    endpoint: str
    http: httpx.AsyncClient
    conversations: Iterator[str] = field(default_factory=lambda: map(f"{uuid.uuid4().hex}-{{}}".format, count()))
    """Names, each of which is used once."""
    agents: OrderedDict[str, Agent] = field(default_factory=OrderedDict)
    """Those of the last conversations, by name."""

    async def ask(self, request: Request) -> JSONResponse:
        asked = await request.json()
        name = asked.get("conversation") or next(self.conversations)  # every other question begins one of its own
        agent = self.agents.pop(name, None) or self._agent(asked, name)
        self.agents[name] = agent
        if len(self.agents) > MOST_AGENTS:
            self.agents.popitem(last=False)
        with collect_message_ids(agent) as ids:
            reply = await agent.reply(UserMsg(name="user", content=asked["question"]))
        # A thumb on the last reply is about those that led to it, too.
        return JSONResponse({"answer": reply.get_text_content(), "message": ids[-1], "conversation": name})

    async def thumb(self, request: Request) -> JSONResponse:
        said = await request.json()
        what = {name: said[name] for name in ("thumb", "correction") if name in said}
        body = {"msg_ids": [said["message"]], "user": said["user"], **what}
        (await self.http.post(f"{self.endpoint}/feedback", json=body)).raise_for_status()
        return JSONResponse({})

    def _agent(self, asked: dict[str, Any], conversation: str) -> Agent:
        return Agent(
            name="solver",
            system_prompt=SYSTEM_PROMPT,
            model=self._model(asked, conversation),
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            state=AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS)),  # nobody is asked
            injection_config=InjectionConfig(inject_runtime_state=False),  # no clock in the prompt
        )

    def _model(self, asked: dict[str, Any], conversation: str) -> OpenAIChatModel:
        headers = {"X-ASTune-Conversation": conversation}
        return OpenAIChatModel(
            credential=OpenAICredential(api_key="none", base_url=f"{self.endpoint}/v1"),
            model="policy",
            parameters=OpenAIChatModel.Parameters(temperature=asked.get("temperature")),
            stream=False,
            client_kwargs={"http_client": self.http, "default_headers": headers},
            extra_body={"user": asked["user"]},
        )


def app(endpoint: str, http: httpx.AsyncClient | None = None) -> Starlette:
    """The web service of the agent whose model is at `endpoint`."""
    service = Service(endpoint, http or httpx.AsyncClient(timeout=300.0))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.http:
            yield

    routes = [
        Route("/ask", service.ask, methods=["POST"]),
        Route("/thumb", service.thumb, methods=["POST"]),
        Route("/health", lambda _: JSONResponse({})),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", required=True, help="of the model, without /v1")
    parser.add_argument("--port", type=int, default=8020)
    given = parser.parse_args()
    # With its other parser uvicorn loses the bodies of clients that offer HTTP/2, as Java's does.
    uvicorn.run(app(given.endpoint), http="h11", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
