"""A policy that answers from a script: an agent's whole run without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import PolicyError
from astune.token_ids import TokenIds
from astune.types import FinishReason, Generation, Sampling


class ScriptedPolicy:
    """Gives the answers of a list in turn, or what a function of the rendered prompt says.

        policy = ScriptedPolicy(["Hello", "The answer is 4."], chat_format)
        policy = ScriptedPolicy(lambda prompt: "4" if "2 + 2" in prompt else "?", chat_format)
        policy.calls  # [(prompt_ids, sampling), ...]

    The token that ends an answer is added; an answer longer than `max_tokens` is cut, with finish reason
    "length". One that holds a text of `Sampling.stop` ends with the token that completes it. Logprobs depend on the
    token and its place alone. Raises PolicyError when the list is used up.
    """

    def __init__(
        self,
        answers: Sequence[str] | Callable[[str], str],
        chat_format: ChatFormat,
        *,
        context_length: int = 4096,
        policy_version: int = 0,
    ) -> None:
        self._answers = answers
        self._chat_format = chat_format
        self.context_length = context_length
        self.policy_version = policy_version
        self.calls: list[tuple[TokenIds, Sampling]] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        number = len(self.calls)
        self.calls.append((TokenIds.of(prompt_ids), sampling))
        ids = (*self._chat_format.encode(self._answer(number, prompt_ids)), self._chat_format.stop_token_ids[0])
        return make_generation(ids, sampling, self._chat_format, self.policy_version)

    def _answer(self, number: int, prompt_ids: Sequence[int]) -> str:
        if callable(self._answers):
            return self._answers(self._chat_format.decode(prompt_ids))
        if number >= len(self._answers):
            raise PolicyError(f"the scripted policy has {len(self._answers)} answers and was asked for one more")
        return self._answers[number]


def make_generation(
    ids: Sequence[int], sampling: Sampling, chat_format: ChatFormat, policy_version: int = 0
) -> Generation:
    """`ids`, which end with a stop token, as the answer that `sampling` lets through, with logprobs made up."""
    output_ids, finish_reason = cut_short(ids, sampling, chat_format.decode)
    return Generation(
        output_ids=output_ids,
        logprobs=tuple(make_logprob(place, token) for place, token in enumerate(output_ids)),
        policy_version=policy_version,
        finish_reason=finish_reason,
    )


def cut_short(
    ids: Sequence[int], sampling: Sampling, decode: Callable[[Sequence[int]], str]
) -> tuple[tuple[int, ...], FinishReason]:
    """The ids that a model samples under `sampling`: up to the first stop text, and no more than `max_tokens`."""
    whole = count_to_stop(ids, sampling.stop, decode)
    return tuple(ids[: min(whole, sampling.max_tokens)]), "stop" if whole <= sampling.max_tokens else "length"


def count_to_stop(ids: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> int:
    """Count `ids` up to the token that completes the first text of `stop`; all if none is there."""
    for count in range(1, len(ids) + 1) if stop else ():
        text = decode(ids[:count])
        if any(ending in text for ending in stop):
            return count
    return len(ids)


def make_logprob(place: int, token: int) -> float:
    """The logprob a ScriptedPolicy reports for `token` at `place` of an answer: between -1 and 0, never 0."""
    return -((31 * token + 7 * place) % 97 + 1) / 100
