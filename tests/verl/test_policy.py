"""What servers answer, read as ASTune means it. A client that answers as told stands in for verl's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
import ray
from verl.workers.rollout.replica import TokenOutput

from astune.backbone.policies.requests import ServerTraits
from astune.backbone.verl.servers.policy import ServersPolicy
from astune.errors import ContextOverflow, PolicyError
from astune.support.current_episode import in_episode
from astune.types import Generation, Sampling

VLLM = ServerTraits("vllm", "processed_logprobs")


class Client:
    def __init__(self, ids: Sequence[int], **more: Any) -> None:
        versions = {"global_steps": 4, "min_global_steps": 3, "max_global_steps": 4}
        given = {"log_probs": [-0.5] * len(ids), "stop_reason": "completed", "extra_fields": versions, **more}
        self.output = TokenOutput(token_ids=list(ids), **given)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.asked.append((request_id, sampling_params))
        return self.output


def policy(client: Client, traits: ServerTraits = VLLM) -> ServersPolicy:
    return ServersPolicy(client, traits, 100, lambda ids: "".join(map(chr, ids)))


def answer(client: Client, sampling: Sampling, traits: ServerTraits = VLLM) -> Generation:
    return asyncio.run(policy(client, traits).generate([1, 2], sampling))


@pytest.mark.parametrize(
    ("ids", "sampling", "reason"),
    [
        ([7, 8, 9], Sampling(3), "length"),
        ([7, 8, 9], Sampling(3, stop_token_ids=(9,)), "stop"),
        ([7, 8], Sampling(3, stop_token_ids=(9,)), "stop"),
        ([97, 98, 99], Sampling(3, stop=("bc",)), "stop"),
        ([97, 98, 99], Sampling(3, stop=("d",)), "length"),
    ],
    ids=["cut", "stop token", "shorter than allowed", "stop text at the end", "stop text not reached"],
)
def test_an_answer_tells_itself_whether_it_was_cut(ids: list[int], sampling: Sampling, reason: str) -> None:
    assert answer(Client(ids), sampling).finish_reason == reason


def test_an_answer_that_spans_versions_counts_as_of_the_oldest() -> None:
    assert answer(Client([7]), Sampling(1)).policy_version == 3


@pytest.mark.parametrize(
    ("traits", "sampling", "told"),
    [
        (VLLM, Sampling(1, temperature=0.7), True),
        (VLLM, Sampling(1, top_p=0.9), False),
        (VLLM, Sampling(1, top_k=5), False),
        (VLLM, Sampling(1, temperature=0.0), True),
        (ServerTraits("vllm", "raw_logprobs"), Sampling(1, top_p=0.9), True),
        (ServerTraits("vllm", "raw_logprobs"), Sampling(1, temperature=0.7), False),
        (ServerTraits("astune_cpu", "processed_logprobs"), Sampling(1, temperature=0.7, top_p=0.9), True),
    ],
)
def test_log_probabilities_that_mean_something_else_are_no_numbers(
    traits: ServerTraits, sampling: Sampling, told: bool
) -> None:
    (logprob,) = answer(Client([7]), sampling, traits).logprobs
    assert logprob == -0.5 if told else math.isnan(logprob)


def test_parameters_are_those_that_the_server_knows() -> None:
    sampling = Sampling(5, stop_token_ids=(9,), seed=2**64 + 3)
    client = Client([7])
    answer(client, sampling)
    ((_, given),) = client.asked
    assert given["seed"] == 3 and given["ignore_eos"] and given["top_k"] == -1 and "stop" not in given
    answer(client, sampling, ServerTraits("sglang", ""))
    assert "seed" not in client.asked[1][1] and "ignore_eos" not in client.asked[1][1]


def test_calls_of_an_episode_go_to_the_server_that_has_its_beginning() -> None:
    client = Client([7])
    asked = policy(client)

    async def two_calls() -> None:
        with in_episode("train/1/t/0"):
            await asked.generate([1], Sampling(1))
            await asked.generate([1, 7], Sampling(1))
        await asked.generate([1], Sampling(1))

    asyncio.run(two_calls())
    assert [name for name, _ in client.asked][:2] == ["train/1/t/0"] * 2
    assert client.asked[2][0] != "train/1/t/0"


def test_what_cannot_be_an_answer_is_an_error_of_the_policy() -> None:
    with pytest.raises(ContextOverflow, match="prompt of 2 tokens and answer of up to 99"):
        answer(Client([7]), Sampling(99))
    with pytest.raises(PolicyError, match="broke the answer off"):
        answer(Client([7], stop_reason="aborted"), Sampling(3))
    with pytest.raises(PolicyError, match="2 tokens and 1 log-probabilities"):
        answer(Client([7, 8], log_probs=[-0.5]), Sampling(3))


class Failing(Client):
    """Raises each of `errors` before it answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__([7])
        self.errors = list(errors)
        self.failed = asyncio.Event()

    async def generate(self, *given: Any, **more: Any) -> TokenOutput:
        if self.errors:
            self.failed.set()
            raise self.errors.pop(0)
        return await super().generate(*given, **more)


def test_a_call_to_a_server_that_died_ends_with_the_run() -> None:
    """As an error it would be an episode without a reward, and the step would be learned from what is left."""

    async def call() -> None:
        client = Failing(ray.exceptions.ActorDiedError())
        waiting = asyncio.ensure_future(policy(client).generate([1], Sampling(1)))
        await client.failed.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(call())


def test_a_server_that_could_not_be_reached_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astune.backbone.verl.servers.policy.AGAIN", 0.0)
    client = Failing(*[ray.exceptions.ActorUnavailableError("the network hiccups", None) for _ in range(3)])
    assert answer(client, Sampling(1)).output_ids == (7,)
    with pytest.raises(PolicyError, match="a server failed: ValueError: broken"):
        answer(Failing(ray.exceptions.RayTaskError("generate", "", ValueError("broken"))), Sampling(1))
