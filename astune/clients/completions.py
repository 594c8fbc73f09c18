"""Requests to vLLM's `/v1/completions`: token ids there, token ids back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astune.types import Sampling


def completion_request(model: str, prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """The body of the request. Stop tokens and texts stay part of the answer, as `Sampling` says."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "logprobs": 0,  # of the sampled token and of no other
        "return_token_ids": True,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if sampling.stop:
        body |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body
