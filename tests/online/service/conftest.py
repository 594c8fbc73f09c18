import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.online.service.serving import Model, OnlineService
from astune.online.store.versions import ModelVersion
from astune.support.http.serving import BACKLOG, bound_socket, server_config
from astune.testing import ScriptedPolicy, write_test_model_dir
from tests.store.databases import new_url


@pytest.fixture(scope="session")
def chat_format(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    return new_url(request.param, tmp_path)


def configured(store: str, **serve: object) -> Config:
    rollout = serve.pop("rollout", {"max_tokens": 64})
    online = {"store": store, "serve": serve, **serve.pop("online", {})}
    return Config.model_validate({"astune": {"seed": 1, "rollout": rollout, "online": online}})


def scripted(chat_format: ChatFormat, answers: object, policies: list[ScriptedPolicy] | None = None) -> Model:
    """A model each of whose versions answers from the script."""

    def load(version: ModelVersion) -> ScriptedPolicy:
        policy = ScriptedPolicy(answers, chat_format, policy_version=version.number)
        if policies is not None:
            policies.append(policy)
        return policy

    return Model("scripted", chat_format, load, ModelVersion(0, sha256="5e1f"))


@contextmanager
def over_network(service: OnlineService) -> Iterator[tuple[str, int]]:
    """Host and port at which a service answers as it does in a process of its own."""
    listener = bound_socket("127.0.0.1", 0)
    listener.listen(BACKLOG)
    server = uvicorn.Server(server_config(service.guarded, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


@contextmanager
def calling(service: OnlineService) -> Iterator[httpx.Client]:
    """A client of a service over the network."""
    with (
        over_network(service) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", trust_env=False) as client,
    ):
        yield client


class Client(httpx.AsyncClient):
    """Calls a service in this process."""

    def __init__(self, service: OnlineService) -> None:
        self.service = service
        transport = httpx.ASGITransport(app=service.app.asgi)
        super().__init__(transport=transport, base_url="http://service", trust_env=False)

    async def chat(self, messages: list[dict], *, headers: dict[str, str] | None = None, **more: object) -> dict:
        response = await self.post("/v1/chat/completions", json={"messages": messages, **more}, headers=headers)
        assert response.status_code == 200, response.text
        return response.json() | {"conversation": response.headers["x-astune-conversation-id"]}


@pytest.fixture(scope="session")
def make_service(chat_format: ChatFormat) -> Callable[..., object]:
    """`async with make_service(store, answers) as client`. Ids are counted: by `ids`, or over all services."""
    count = itertools.count()

    @asynccontextmanager
    async def make(
        store: str,
        answers: object = lambda prompt: "4",
        policies: list | None = None,
        ids: Iterator[int] = count,
        clock: Callable[[], float] | None = None,
        **serve: object,
    ) -> AsyncIterator[Client]:
        service = OnlineService(
            configured(store, **serve),
            scripted(chat_format, answers, policies),
            clock=clock,
            token=lambda: f"{next(ids):016x}",
            new_id=lambda: f"c-{next(ids)}",
        )
        async with Client(service) as client:
            yield client
        service.close()

    return make


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
