"""Requests to policies: those that every policy refuses, and those that servers of other engines take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astune.errors import ContextOverflow, PolicyError
from astune.types import Sampling

MOST_SEED = 2**63
"""Seeds of vLLM are below it."""


def check_answerable(prompt_ids: Sequence[int], sampling: Sampling, context_length: int) -> None:
    """Raises PolicyError for an empty prompt, ContextOverflow where the prompt leaves no room for the longest answer.

    >>> check_answerable([5, 6], Sampling(max_tokens=3), context_length=4)
    Traceback (most recent call last):
    astune.errors.ContextOverflow: prompt of 2 tokens and answer of up to 3 exceed the context length of 4
    """
    if not len(prompt_ids):
        raise PolicyError("cannot continue an empty prompt")
    if len(prompt_ids) + sampling.max_tokens > context_length:
        raise ContextOverflow(
            f"prompt of {len(prompt_ids)} tokens and answer of up to {sampling.max_tokens} exceed the context length "
            f"of {context_length}"
        )


@dataclass(frozen=True)
class ServerTraits:
    """The differences between servers. `name` is "vllm", "sglang" or "astune_cpu"; `logprobs` is what vLLM calls its
    `logprobs_mode`, and verl `rollout.logprobs_mode`."""

    name: str
    logprobs: str

    @property
    def is_ours(self) -> bool:
        return self.name == "astune_cpu"

    def parameters(self, sampling: Sampling) -> dict[str, Any]:
        """The parameters of one answer, by the server's names for them."""
        given: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": True,
        }
        if sampling.stop:
            given["stop"] = list(sampling.stop)
        if self.name != "sglang":  # which ignores all stop tokens with the one, and knows no seed of a request
            given["ignore_eos"] = True
            if sampling.seed is not None:
                given["seed"] = sampling.seed % MOST_SEED
        return given

    def tells_logprobs(self, sampling: Sampling) -> bool:
        """True if the log-probabilities that come back are those of softmax(logits / temperature), before top-p and
        top-k cut it."""
        if self.is_ours or sampling.greedy:
            return True
        if self.name == "vllm" and self.logprobs.startswith("raw"):
            return sampling.temperature == 1.0
        return sampling.top_p == 1.0 and sampling.top_k == 0
