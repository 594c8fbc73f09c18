"""verl's servers as ASTune's `Policy`: token ids in, token ids with their log-probabilities out.

Where a server does not mean what ASTune means, the difference ends here:

- vLLM says "completed" of an answer that was cut and of one that ended; which it was is told by the answer itself.
- It cuts `max_tokens` in silence to what fits; here that is a `ContextOverflow`, as with every other policy.
- Its log-probabilities are those after top-p and top-k, or those at temperature 1. Where that is not what the tokens
  were drawn from, they are not numbers, so nothing is trained on them (`Turn.excluded` is "no_logprobs").
- The server's own end of text does not end an answer; `Sampling.stop_token_ids` does.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import ray
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from astune.backbone.policies.requests import ServerTraits, check_answerable
from astune.errors import AstuneError, PolicyError, name_error
from astune.support.current_episode import EPISODE
from astune.types import FinishReason, Generation, Sampling

AGAIN = 1.0
"""Seconds until a server is asked again that could not be reached."""


class ServersPolicy:
    """Asks the servers of a run, each in turn as verl balances them; the calls of an episode go to the same one, which
    has the beginning of its conversation. `decode` gives the text of token ids. What is answered is given to
    `remember`, to compare weights by. Without it this can be pickled, and asks from any process of the cluster."""

    def __init__(
        self,
        client: LLMServerClient,
        traits: ServerTraits,
        context_length: int,
        decode: Callable[[Sequence[int]], str],
        remember: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self._client, self._traits = client, traits
        self.context_length, self._decode, self._remember = context_length, decode, remember

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Raises PolicyError where a server fails. Where one died the call never ends: the run does, with the server's
        name, and a step that lost the episodes of one server is not learned from what the others played."""
        check_answerable(prompt_ids, sampling, self.context_length)
        episode = EPISODE.get()
        conversation = uuid.uuid4().hex if episode is None else episode.episode_id
        output = await self._ask(conversation, prompt_ids, self._traits.parameters(sampling))
        generation = self._read(output, sampling)
        if self._remember is not None:
            self._remember([*prompt_ids, *generation.output_ids])
        return generation

    async def _ask(self, conversation: str, prompt_ids: Sequence[int], parameters: dict[str, Any]) -> TokenOutput:
        while True:
            try:
                return await self._client.generate(
                    conversation, prompt_ids=list(prompt_ids), sampling_params=parameters
                )
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, AstuneError):
                    raise error.cause from error
                raise PolicyError(f"a server failed: {name_error(error.cause)}") from error
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(AGAIN)  # whether it is dead Ray does not know yet
            except ray.exceptions.ActorDiedError:
                await asyncio.get_running_loop().create_future()  # until the run cancels it
            except ray.exceptions.RayError as error:
                raise PolicyError(f"a server is gone: {name_error(error)}") from error

    def _read(self, output: TokenOutput, sampling: Sampling) -> Generation:
        ids = tuple(output.token_ids)
        if output.stop_reason == "aborted" or not ids:
            raise PolicyError("a server broke the answer off: it was given new weights, or stopped")
        logprobs = tuple(output.log_probs or ())
        if not self._traits.tells_logprobs(sampling):
            logprobs = (math.nan,) * len(ids)
        if len(logprobs) != len(ids):
            raise PolicyError(f"a server gave {len(ids)} tokens and {len(logprobs)} log-probabilities")
        version = output.extra_fields["min_global_steps"]
        return Generation(ids, logprobs, version, self._finish_reason(ids, sampling))

    def _finish_reason(self, ids: Sequence[int], sampling: Sampling) -> FinishReason:
        if ids[-1] in sampling.stop_token_ids or len(ids) < sampling.max_tokens:
            return "stop"
        text = self._decode(ids) if sampling.stop else ""
        return "stop" if any(stop in text for stop in sampling.stop) else "length"
