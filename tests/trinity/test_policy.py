"""Token ids in, token ids out, over an engine's own endpoints. vLLM needs a GPU: a server with its completions endpoint
over the local sampler stands in for it here."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trinity")

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from astune.backbone.local.engine import load_policy
from astune.backbone.trinity.explorer.policy import CompletionsPolicy, generation
from astune.clients.completions import completion_request
from astune.config.load import load_config
from astune.errors import ContextOverflow, PolicyError, WorkflowError
from astune.rollout.group import run_group
from astune.support.resources import tutorial_dir
from astune.training.rollout_setup import rollout_setup, sampling_for
from astune.training.tasks import read_tasks
from astune.types import Group, Sampling

DEMO = load_config(tutorial_dir() / "math_agent" / "demo.yaml").config.astune
LENGTH = 512


@dataclass(eq=False)
class Engine:
    """What `ModelWrapper` has of a vLLM engine."""

    api_address: str
    version: int = 4
    api_key: str = "EMPTY"
    config: Any = field(
        default_factory=lambda: SimpleNamespace(model_path="tiny", max_model_len=LENGTH, engine_type="vllm")
    )

    @property
    async def model_version_async(self) -> int:
        return self.version


class CompletionsServer:
    """`/v1/completions` with `return_token_ids`, as vLLM answers it."""

    def __init__(self) -> None:
        self.sampler, self.requests = load_policy(DEMO)[1], []
        self.strip: tuple[str, ...] = ()
        app = Starlette(routes=[Route("/v1/completions", self._complete, methods=["POST"])])
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def start(self) -> str:
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.01)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _complete(self, request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        self.requests.append(body)
        if body["model"] != "tiny":
            return JSONResponse({"message": f"The model {body['model']} does not exist."}, status_code=404)
        sampling = Sampling(
            body["max_tokens"], body["temperature"], stop_token_ids=tuple(body["stop_token_ids"]), seed=body.get("seed")
        )
        try:
            answer = await self.sampler.generate(body["prompt"], sampling)
        except WorkflowError as error:
            return JSONResponse({"message": str(error)}, status_code=400)
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "token_ids": list(answer.output_ids),
            "logprobs": {"token_logprobs": list(answer.logprobs)},
            "finish_reason": answer.finish_reason,
        }
        return JSONResponse({"choices": [{key: value for key, value in choice.items() if key not in self.strip}]})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[CompletionsServer, str]]:
    running = CompletionsServer()
    yield running, running.start()
    running.stop()


def test_an_agent_with_tools_runs_on_the_endpoint_as_on_the_local_sampler(
    server: tuple[CompletionsServer, str],
) -> None:
    _, address = server
    _, sampler, chat_format = load_policy(DEMO)
    task = read_tasks(DEMO).training[0]

    async def play(policy: Any) -> Group:
        setup = rollout_setup(DEMO, policy, chat_format)
        return await run_group(task, 2, setup, seed=1, sampling=sampling_for(DEMO, "greedy"))

    async def play_over_http() -> Group:
        policy = CompletionsPolicy(Engine(address), LENGTH)
        try:
            return await play(policy)
        finally:
            await policy.close()

    over_http, direct = asyncio.run(play_over_http()), asyncio.run(play(sampler))
    assert [len(episode.turns) for episode in direct.episodes] >= [2, 2], "the agent calls its tool"
    for ours, theirs in zip(direct.episodes, over_http.episodes, strict=True):
        assert [turn.prompt_ids for turn in ours.turns] == [turn.prompt_ids for turn in theirs.turns]
        assert [turn.output_ids for turn in ours.turns] == [turn.output_ids for turn in theirs.turns]
        # calls that meet in a batch by chance change the last digits
        near = [pytest.approx(list(turn.logprobs), abs=1e-5) for turn in theirs.turns]
        assert [list(turn.logprobs) for turn in ours.turns] == near
        assert {turn.policy_version for turn in theirs.turns} == {4}
        assert all(turn.exact for turn in theirs.turns)
        assert ours.verdict == theirs.verdict


def test_what_an_agent_asks_for_reaches_the_engine() -> None:
    body = completion_request("m", (1, 2), Sampling(8, 0.5, 0.9, 20, (7,), ("END",), seed=2**47 + 3))
    assert body["prompt"] == [1, 2] and body["max_tokens"] == 8 and body["seed"] == 2**47 + 3
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 20)
    assert body["stop_token_ids"] == [7] and body["stop"] == ["END"] and body["include_stop_str_in_output"]
    assert completion_request("m", (1,), Sampling(8))["top_k"] == -1


def generate(address: str, engine: Engine | None = None, prompt: tuple[int, ...] = (1, 2)) -> Any:
    async def call() -> Any:
        policy = CompletionsPolicy(engine or Engine(address), LENGTH)
        try:
            return await policy.generate(prompt, Sampling(8, seed=1))
        finally:
            await policy.close()

    return asyncio.run(call())


def test_a_prompt_that_is_too_long_is_refused_before_it_is_sent(server: tuple[CompletionsServer, str]) -> None:
    running, address = server
    before = len(running.requests)
    with pytest.raises(ContextOverflow, match="prompt of 505 tokens"):
        generate(address, prompt=(1,) * 505)
    assert len(running.requests) == before


@pytest.mark.fault(
    "Agents and the engine",
    "an inference engine refuses, is gone or gives no token ids",
    "an error of the engine, never the agent's fault",
)
def test_an_engine_that_refuses_or_is_gone_or_gives_no_ids_is_a_policy_error(
    server: tuple[CompletionsServer, str],
) -> None:
    running, address = server
    unknown = Engine(address, config=SimpleNamespace(model_path="other", max_model_len=LENGTH))
    with pytest.raises(PolicyError, match="The model other does not exist"):
        generate(address, unknown)
    with pytest.raises(PolicyError, match="cannot be reached"):
        generate("http://127.0.0.1:9")
    for missing in ("token_ids", "logprobs"):
        running.strip = (missing,)
        with pytest.raises(PolicyError, match="return_token_ids"):
            generate(address)
    running.strip = ()


def test_a_request_that_the_engine_does_not_accept_is_the_agents_fault(server: tuple[CompletionsServer, str]) -> None:
    with pytest.raises(WorkflowError, match=r"does not accept the request: .*token id 2147483647"):
        generate(server[1], prompt=(1, 2**31 - 1))


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), None])
def test_logprobs_that_are_no_numbers_are_a_fault_of_the_engine(wrong: Any) -> None:
    with pytest.raises(PolicyError, match="no finite numbers"):
        generation([1, 2], [-0.5, wrong], 3, "stop")
