import asyncio
import json
import resource
from urllib.parse import urlsplit

import httpx
import pytest

from astune.errors import RolloutError
from astune.gateway.app import OpenAIApp
from astune.gateway.server import HttpServer
from tests.ports import free_ports

HI = [{"role": "user", "content": "Hi"}]


def test_the_address_can_be_chosen_and_is_free_again_after_the_server_is_closed():
    (port,) = free_ports(1)
    for _ in range(2):
        server = HttpServer(OpenAIApp(), host="localhost", port=port)
        assert server.origin == f"http://localhost:{port}"
        with httpx.Client() as client:  # its connection is still open when the server closes
            assert client.get(f"{server.origin}/guess/v1/models").status_code == 404
            with pytest.raises(RolloutError, match=rf"cannot serve at 127\.0\.0\.1:{port}: Address already in use"):
                HttpServer(OpenAIApp(), port=port)
            server.close()


@pytest.mark.fault("The OpenAI-compatible endpoint", "another machine calls", "it cannot reach the endpoint")
def test_other_machines_cannot_reach_a_server_by_default():
    server = HttpServer(OpenAIApp())
    assert server.origin.startswith("http://127.0.0.1:")
    server.close()


async def post(url):
    """The raw answer to a chat completion, over a connection of its own."""
    parts = urlsplit(url)
    body = json.dumps({"messages": HI})
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.fixture
def many_files():
    """Both ends of 512 connections are open files of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.fault("The OpenAI-compatible endpoint", "512 calls at once", "all are answered and recorded")
async def test_512_calls_at_once_are_all_answered_and_recorded(make_tuner, many_files):
    """They all wait for the policy together, each over a connection of its own."""
    tuners = [make_tuner(["Hello"]) for _ in range(512)]
    waiting, all_here = [], asyncio.Event()
    for _, _, policy in tuners:

        async def generate(prompt_ids, sampling, generate=policy.generate):
            waiting.append(prompt_ids)
            if len(waiting) == len(tuners):
                all_here.set()
            await all_here.wait()
            return await generate(prompt_ids, sampling)

        policy.generate = generate
    answers = await asyncio.gather(*(post(tuner.base_url()) for tuner, _, _ in tuners))
    assert {answer.split(b" ")[1] for answer in answers} == {b"200"}
    assert [len(tracker.turns) for _, tracker, _ in tuners] == [1] * 512
