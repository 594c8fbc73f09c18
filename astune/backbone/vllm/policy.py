"""A vLLM server's answers as ASTune's `Policy`: token ids in, token ids with their log-probabilities out."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from astune.backbone.policies.requests import ServerTraits, check_answerable
from astune.backbone.vllm.server import VllmServer
from astune.errors import PolicyError, WorkflowError
from astune.types import FinishReason, Generation, Sampling

DIES_WITHIN = 20.0
"""Seconds from a broken connection to when a server that is dying is dead."""


class ServedPolicy:
    """A server that answers with the weights it was given last. `model` is its name for them, which a hand-over of an
    adapter changes. `remember` is called with every prompt and its answer, to compare weights by. `vocabulary` is the
    number of token ids that the model knows."""

    def __init__(
        self,
        server: VllmServer,
        traits: ServerTraits,
        context_length: int,
        vocabulary: int,
        model: str,
        remember: Callable[[Sequence[int]], None],
    ) -> None:
        self._server, self._traits = server, traits
        self.context_length, self._vocabulary = context_length, vocabulary
        self._remember = remember
        self.model = model
        self.policy_version = 0
        self._asking: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    def forget(self) -> None:
        """The server's cache is emptied as weights are handed over."""

    def publish(self) -> int:
        """The weights changed; the caller hands them over."""
        self.policy_version += 1
        return self.policy_version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Raises WorkflowError for token ids that the model does not know, PolicyError where the server fails on this
        request. Where it died the call never ends: the run does, with the end of its log."""
        check_answerable(prompt_ids, sampling, self.context_length)
        if wrong := [each for each in prompt_ids if not 0 <= each < self._vocabulary]:
            raise WorkflowError(f"the prompt has token id {wrong[0]}, but the model knows 0 to {self._vocabulary - 1}")
        version = self.policy_version
        parameters = self._traits.parameters(sampling) | {"logprobs": 0}
        parameters.setdefault("seed", random.getrandbits(63))
        body = {"model": self.model, "token_ids": list(map(int, prompt_ids)), "sampling_params": parameters}
        (choice,) = (await self._ask(body))["choices"]
        generation = self._read(choice, sampling, version)
        self._remember([*prompt_ids, *generation.output_ids])
        return generation

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            reply = await self._get_client().post("/inference/v1/generate", json=body)
        except httpx.TransportError as error:
            for _ in range(int(DIES_WITHIN)):
                if not self._server.alive:
                    await asyncio.get_running_loop().create_future()  # until the run cancels it
                await asyncio.sleep(1.0)
            raise PolicyError(f"the connection to the vLLM server broke: {error!r}") from error
        if reply.status_code != 200:
            raise PolicyError(f"the vLLM server failed: {reply.status_code} {reply.text[:1000]}")
        told: dict[str, Any] = reply.json()
        return told

    def _get_client(self) -> httpx.AsyncClient:
        """One client for each event loop: the stages of a run have their own."""
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking[0] is not loop:
            self._asking = loop, self._server.requests()
        return self._asking[1]

    def _read(self, choice: dict[str, Any], sampling: Sampling, version: int) -> Generation:
        ids = tuple(choice["token_ids"])
        reason: FinishReason | str = choice["finish_reason"]
        if reason not in ("stop", "length") or not ids:
            raise PolicyError(f"the vLLM server broke an answer off: {reason}")
        entries = choice["logprobs"]["content"]
        if [entry["token_id"] for entry in entries] != list(ids):
            raise PolicyError("the vLLM server gave log-probabilities of other tokens than it sampled")
        told = self._traits.tells_logprobs(sampling)
        logprobs = tuple(float(entry["logprob"]) if told else math.nan for entry in entries)
        return Generation(ids, logprobs, version, "stop" if reason == "stop" else "length")
