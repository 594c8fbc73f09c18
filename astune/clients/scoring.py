"""Score given token ids by another model: vLLM's `prompt_logprobs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import openai
from openai.types import Completion

from astune.clients.api import ApiClient
from astune.config.chat_models import TeacherConfig
from astune.errors import ModelError, PolicyError

SENTENCE = "What is the answer to 3 plus 4? The answer is 7."
"""Its tokens show whether a server's vocabulary is another."""
ROUNDING = 1e-3
"""The most by which a log-probability may come out above 0."""
HOW = "expected a server with prompt_logprobs, such as vLLM"


@dataclass(frozen=True)
class Score:
    """The log-probability of a token after those before it, and its text where the server tells it."""

    logprob: float
    text: str | None


class ScoringClient(ApiClient[TeacherConfig]):
    """An API that says how likely its model finds each of given tokens, at temperature 1.

        client = ScoringClient("teacher", config, key="astune.algorithm.teacher")
        [score.logprob for score in await client.scores([5, 17, 3])]     # of 17 and of 3

    It asks for one more token, as vLLM cannot generate none, so a row must be shorter than the model's context.
    Raises ConfigError as `ApiClient` does.
    """

    async def scores(self, token_ids: Sequence[int]) -> list[Score]:
        """The score of each token but the first.

        Raises:
            PolicyError: the API cannot be reached, refuses the key, fails, or gives no such log-probabilities.
            WorkflowError: the API does not accept the tokens: there are too many, or one that it does not have.
        """
        try:
            completion: object = await self._client.completions.create(
                model=self.config.model,
                prompt=list(token_ids),
                max_tokens=1,
                temperature=1.0,
                extra_body={"prompt_logprobs": 0},  # that of the token alone, without likelier ones
            )
        except openai.OpenAIError as error:
            raise self._explain(error, self.config.timeout, self.config.max_retries) from error
        if not isinstance(completion, Completion) or not completion.choices:
            raise PolicyError(
                f"{self._key}: {self.config.base_url} answered with something that is no completion; does base_url end "
                "as the API's documentation says, usually in /v1?"
            )
        given = (completion.choices[0].model_extra or {}).get("prompt_logprobs")
        if not isinstance(given, list):
            raise PolicyError(f"{self._key}: {self.config.base_url} gives no log-probabilities of a prompt; {HOW}")
        if len(given) != len(token_ids):
            raise PolicyError(
                f"{self._key}: {self.config.base_url} gave {len(given)} log-probabilities for {len(token_ids)} tokens"
            )
        pairs = list(zip(given, token_ids, strict=True))[1:]
        return [self._score(entry, token, place) for place, (entry, token) in enumerate(pairs, start=1)]

    def _score(self, entry: Any, token: int, place: int) -> Score:
        found = entry.get(str(token)) if isinstance(entry, dict) else None
        value = found.get("logprob") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not _is_log_probability(value):
            raise PolicyError(
                f"{self._key}: {self.config.base_url} gave {value!r} for token {token} at place {place}, which is no "
                f"log-probability; {HOW}"
            )
        text = found.get("decoded_token")
        return Score(min(float(value), 0.0), text if isinstance(text, str) else None)

    async def check_vocabulary(self, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> None:
        """Check that the API's tokens are ours, as far as it tells their texts. Raises ModelError if they are not, and
        what `scores` raises."""
        ids = encode(SENTENCE)
        told = [(decode([token]), score.text) for token, score in zip(ids[1:], await self.scores(ids), strict=True)]
        pairs = [(ours.strip(), theirs.strip()) for ours, theirs in told if theirs is not None]
        compared = [(ours, theirs) for ours, theirs in pairs if ours and theirs and "\ufffd" not in ours + theirs]
        other = [(ours, theirs) for ours, theirs in compared if ours != theirs]
        if len(other) * 2 > len(compared):
            ours, theirs = other[0]
            raise ModelError(
                f"{self._key}: {self.config.model} at {self.config.base_url} has other tokens than the model that is "
                f"trained: what is {ours!r} here is {theirs!r} there; expected a model of the same family"
            )


def _is_log_probability(value: object) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) and value <= ROUNDING
