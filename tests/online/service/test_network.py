"""The service as it is reached over a network: by Java's own client, by pages of browsers, by curl."""

import asyncio
import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from astune.online.service.serving import OnlineService
from astune.online.store.commits import with_state
from tests.online.service.conftest import calling, configured, over_network, scripted, user
from tests.online.service.java import read_chat, read_status

CHAT = json.dumps({"model": "m", "messages": [user("2 + 2?")], "stream": False})
RATED = '{"msg_ids": ["{{id}}"], "reward": 1.0, "task_id": "t9", "run_id": "0"}'
TOKEN = "shop-0123456789abc"


@pytest.fixture
def made(tmp_path, chat_format):
    """`made(**serve)` is a service over a SQLite file."""
    return lambda **serve: closing(
        OnlineService(configured(f"sqlite:///{tmp_path}/online.db", **serve), scripted(chat_format, lambda prompt: "4"))
    )


async def run(*command: str) -> list[str]:
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no JDK")
@pytest.mark.filterwarnings("error")
async def test_the_http_client_of_java_is_answered(made):
    with made() as service, over_network(service) as (host, port):
        program = str(Path(__file__).with_name("JavaClient.java"))
        calls = ["/v1/chat/completions", CHAT, "/feedback", RATED, "/commit", '{"task_id": "t9"}']
        told = [line.split(" ", 2) for line in await run("java", program, f"http://{host}:{port}", *calls)]
        assert [(status, version) for status, version, _ in told] == [("200", "HTTP_1_1")] * 3
        assert read_chat(200, told[0][2].encode())["choices"][0]["message"]["content"] == "4"
        assert read_status(200, told[1][2].encode()) == {"status": "success", "message": "counts"}
        with service.database.reading() as connection:
            (asked,) = with_state(connection, "asked")
        assert asked.wanted.task_id == "t9"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_that_offers_http_2_is_answered_and_one_without_json_is_told_the_header(made):
    with made() as service, over_network(service) as (host, port):
        to = [f"http://{host}:{port}/commit", "-d", '{"task_id": "t9"}']
        (told,) = await run("curl", "-s", "--http2", *to, "-H", "Content-Type: application/json")
        assert json.loads(told)["status"] == "success"
        (told,) = await run("curl", "-s", "--http2", *to)
        assert "Content-Type: application/json" in json.loads(told)["error"]["message"]
        with service.database.reading() as connection:
            assert [each.wanted.task_id for each in with_state(connection, "asked")] == ["t9"]


@pytest.mark.fault(
    "Online training",
    "a page in a browser talks to the service, by its Origin, a form or DNS rebinding",
    "403 or 415, and it is counted",
)
def test_no_page_rates_asks_or_reads(made):
    json_type = {"Content-Type": "application/json"}
    with made(hosts=["shop.example"]) as service, calling(service) as client:
        for path in ("/feedback", "/commit", "/v1/chat/completions", "/v1/astune/records"):
            for status, sent in (
                (403, {**json_type, "Origin": "http://evil.example"}),
                (403, {**json_type, "Host": "evil.example"}),
                (415, {"Content-Type": "text/plain"}),
            ):
                refused = client.post(path, content=b"{}", headers=sent)
                assert (refused.status_code, bool(refused.json()["error"]["message"])) == (status, True)
                assert refused.json().get("status", "error") == "error"
        for path in ("/metrics", "/v1/astune/status", "/health", "/ready"):
            assert client.get(path, headers={"Host": "evil.example"}).status_code == 403
            assert client.get(path, headers={"Host": "shop.example"}).status_code == 200
        proxied = {**json_type, "Host": "shop.example", "Origin": "https://shop.example"}
        assert client.post("/commit", content=b"", headers=proxied).status_code == 200
        metrics = client.get("/metrics").text
        assert 'astune_errors_total{code="forbidden"} 12.0' in metrics
        assert 'astune_errors_total{code="no_json"} 4.0' in metrics


def test_with_tokens_the_service_may_have_any_name_and_pages_get_nothing(made, monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    with made(tokens={"shop": "SHOP_TOKEN"}, feedback_without_token=True) as service, calling(service) as client:
        named = {"Host": "astune.prod.svc.cluster.local", "Authorization": f"Bearer {TOKEN}"}
        assert client.get("/v1/astune/status", headers=named).status_code == 200
        assert client.post("/commit", json={}, headers={"Host": "astune"}).status_code == 200
        assert client.post("/commit", json={}, headers={**named, "Origin": "http://astune"}).status_code == 403


@pytest.mark.fault(
    "Online training",
    "a client sends rewards that are not between 0 and 1",
    "400 with the bounds, in Trinity's `status` and OpenAI's `error`; it is counted and logged",
)
async def test_rewards_out_of_bounds_are_told_and_counted(tmp_path, make_service, caplog):
    async with make_service(f"sqlite:///{tmp_path}/online.db") as client:
        answer = await client.chat([user("Hi")])
        record = {"conversation_id": "c", "messages": [user("Hi"), {"role": "assistant", "content": "4"}]}
        for path, body in (
            ("/feedback", {"msg_ids": [answer["id"]], "reward": 7}),
            ("/feedback", {"msg_ids": [answer["id"]], "rewards": {"speed": -1}}),
            ("/v1/astune/records", record | {"rewards": {"speed": 3}}),
        ):
            refused = await client.post(path, json=body)
            said = refused.json()
            assert (refused.status_code, said["status"], said["error"]["code"]) == (
                400,
                "error",
                "reward_out_of_bounds",
            )
            assert "is not between 0 and 1 (astune.online.feedback.least and most)" in said["message"]
        metrics = (await client.get("/metrics")).text
    assert 'astune_errors_total{code="reward_out_of_bounds"} 3.0' in metrics
    assert caplog.text.count("rewards are refused") == 1
