"""Trinity's own client of its proxy, against the online service."""

import threading

import pytest
import uvicorn

pytest.importorskip("sqlalchemy")
pytest.importorskip("prometheus_client")
pytest.importorskip("alembic")
TrinityClient = pytest.importorskip("trinity.explorer.proxy.client").TrinityClient

from astune.config.schema import Config  # noqa: E402
from astune.context_tracker.prompt.chat_format import ChatFormat  # noqa: E402
from astune.online.service.serving import Model, OnlineService  # noqa: E402
from astune.online.store.commits import with_state  # noqa: E402
from astune.online.store.feedback.figures import feedback_figures  # noqa: E402
from astune.online.store.versions import ModelVersion  # noqa: E402
from astune.support.http.serving import BACKLOG, bound_socket, server_config, url_of  # noqa: E402
from astune.testing import ScriptedPolicy, write_test_model_dir  # noqa: E402


@pytest.fixture
def served(tmp_path):
    """A service and its address."""
    chat_format = ChatFormat.load(write_test_model_dir(tmp_path))
    online = {"store": f"sqlite:///{tmp_path}/online.db"}
    config = Config.model_validate({"astune": {"online": online, "rollout": {"max_tokens": 16}}})
    model = Model("tiny", chat_format, lambda _: ScriptedPolicy(lambda prompt: "4", chat_format), ModelVersion(0))
    service = OnlineService(config, model)
    listener = bound_socket("127.0.0.1", 0)
    listener.listen(BACKLOG)
    server = uvicorn.Server(server_config(service.app.asgi, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield service, url_of("127.0.0.1", listener)
    server.should_exit = server.force_exit = True
    thread.join()
    listener.close()
    service.close()


async def test_every_call_of_trinitys_client_is_understood(served):
    service, url = served
    client = TrinityClient(url)
    assert client.alive()
    with client.get_openai_client() as openai:
        model = openai.models.list().data[0].id
        first = openai.chat.completions.create(model=model, messages=[{"role": "user", "content": "2 + 2?"}])
    async with client.get_openai_async_client() as openai:
        second = await openai.chat.completions.create(model=model, messages=[{"role": "user", "content": "2 + 2?"}])
    assert first.choices[0].message.content == second.choices[0].message.content == "4"
    assert client.feedback(1.0, [first.id])["status"] == "success"
    assert (await client.feedback_async(0.0, [second.id]))["status"] == "success"
    assert client.commit()["status"] == (await client.commit_async())["status"] == "success"
    with service.database.reading() as connection:
        assert feedback_figures(connection).by_kind[("number", "counts")] == 2
        assert len(with_state(connection, "asked")) == 1
    # Those of Trinity's proxy are JSON, ours Prometheus' text. Both of its clients ask with `Accept: */*`, as curl and
    # a plain scraper do: nothing tells them apart, and who scrapes must get what Prometheus reads.
    with pytest.raises(ValueError, match="Expecting value"):
        client.get_metrics()
