"""Trinity's engines as a `Policy`: exact token ids in, exact token ids and their log-probabilities out.

Rendering and parsing are ours in every case, so agents with tools run alike on all engines, and nothing is tokenized
twice. What differs is only how tokens reach the engine:

    tinker   `sample_async` of the tinker SDK, on the weights that Trinity synchronised last
    vllm     `POST /v1/completions` of the engine's own OpenAI endpoint, with ids for a prompt and `return_token_ids`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx

from astune.backbone.policies.requests import check_answerable
from astune.clients.completions import completion_request
from astune.errors import PolicyError, WorkflowError
from astune.types import FinishReason, Generation, Policy, Sampling

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper

KEPT_CLIENTS = 2
"""Sampling clients that are kept: for the weights in use, and for those before, which answers under way still use."""


def policy_for(model: ModelWrapper) -> Policy:
    """The policy over one engine of Trinity's."""
    context_length = model.config.max_model_len
    if context_length is None:
        raise PolicyError("Trinity's engine has no model.max_model_len, so the context length is not known")
    if model.config.engine_type == "tinker":
        return TinkerPolicy(model, context_length)
    return CompletionsPolicy(model, context_length)


class TinkerPolicy:
    """Samples through the tinker SDK from the weights that Trinity's model actor has at the time of the call."""

    def __init__(self, model: ModelWrapper, context_length: int) -> None:
        import tinker

        self._model, self.context_length = model, context_length
        self._service = tinker.ServiceClient()
        self._clients: dict[str, Any] = {}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        check_answerable(prompt_ids, sampling, self.context_length)
        if sampling.stop and sampling.stop_token_ids:
            raise PolicyError(
                "the tinker protocol takes stop texts or stop token ids, not both, and the chat template needs the "
                "ids: let the agent stop without `stop`"
            )
        while True:
            path = await self._model.model.get_model_path.remote()
            try:
                answer = await self._sample(path, prompt_ids, sampling)
            except Exception as error:
                if await self._model.model.get_model_path.remote() == path:
                    raise PolicyError(f"the tinker engine failed: {type(error).__name__}: {error}") from error
                continue  # newer weights have come meanwhile, and those of `path` may be gone
            return generation(answer.tokens, answer.logprobs, version_of(path), answer.stop_reason)

    async def _sample(self, path: str, prompt_ids: Sequence[int], sampling: Sampling) -> Any:
        from tinker import types

        client = await self._client(path)
        response = await client.sample_async(
            prompt=types.ModelInput.from_ints(list(prompt_ids)),
            num_samples=1,
            sampling_params=types.SamplingParams(
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k or -1,
                seed=sampling.seed,
                stop=sampling.stop_token_ids or sampling.stop or None,
            ),
        )
        return response.sequences[0]

    async def _client(self, path: str) -> Any:
        if path not in self._clients:
            which = {"model_path" if path.startswith("tinker://") else "base_model": path}
            self._clients[path] = await self._service.create_sampling_client_async(**which)
            while len(self._clients) > KEPT_CLIENTS:
                del self._clients[next(iter(self._clients))]
        return self._clients[path]


def version_of(path: str) -> int:
    """The train step whose weights `path` names: Trinity ends the names of its sampler weights with it.

    >>> version_of("tinker://1/sampler_weights/math-demo-sampler-12"), version_of("/models/tiny")
    (12, 0)
    """
    return int(path.rpartition("-")[2]) if path.startswith("tinker://") else 0


class CompletionsPolicy:
    """Samples through the completions endpoint of an engine that takes and reports token ids, as vLLM's does."""

    def __init__(self, model: ModelWrapper, context_length: int) -> None:
        self._model, self.context_length = model, context_length
        self._http = httpx.AsyncClient(timeout=None)  # the episode's own limit of time ends a call that hangs

    async def close(self) -> None:
        await self._http.aclose()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        check_answerable(prompt_ids, sampling, self.context_length)
        version = await self._model.model_version_async
        body = completion_request(self._model.config.model_path, prompt_ids, sampling)
        try:
            response = await self._http.post(
                f"{self._model.api_address}/v1/completions",
                json=body,
                headers={"Authorization": f"Bearer {self._model.api_key}"},
            )
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.BAD_REQUEST:
                raise WorkflowError(f"the engine does not accept the request: {error.response.text[:500]}") from error
            raise PolicyError(f"the engine refused a request: {error.response.text[:500]}") from error
        except httpx.HTTPError as error:
            raise PolicyError(f"the engine cannot be reached: {type(error).__name__}: {error}") from error
        choice = response.json()["choices"][0]
        if choice.get("token_ids") is None or not choice.get("logprobs"):
            raise PolicyError(
                "the engine's completions endpoint gave no token_ids or no logprobs; expected a vLLM that knows "
                "return_token_ids (0.10.2 or newer)"
            )
        return generation(
            choice["token_ids"], choice["logprobs"]["token_logprobs"], max(version, 0), choice["finish_reason"]
        )


def generation(ids: Sequence[int], logprobs: Sequence[float] | None, version: int, stop_reason: str) -> Generation:
    """An engine's answer as a `Generation`. Raises PolicyError where ids and log-probabilities do not fit together."""
    if logprobs is None or len(ids) != len(logprobs):
        raise PolicyError(f"the engine gave {len(ids)} tokens but {len(logprobs or ())} log-probabilities")
    if not all(isinstance(logprob, (int, float)) and math.isfinite(logprob) for logprob in logprobs):
        raise PolicyError("the engine gave log-probabilities that are no finite numbers")
    reason: FinishReason = "length" if stop_reason == "length" else "stop"
    return Generation(tuple(ids), tuple(float(logprob) for logprob in logprobs), version, reason)
