"""Continuous batching: one forward pass per step advances every conversation that is waiting for a token.

The sampler runs in the event loop's own thread, between the agents' steps (`driver`): once they all wait for the model
it takes new requests in, then decodes one token for all. Long prompts are computed in pieces between the steps, so that
answers under way go on. Which requests meet in a batch therefore depends on the agents' code and not on timing: with
agents that do no outside input or output, a seed gives the same tokens, bit for bit. Agents in other processes are kept
in step by `rollout.rounds`.

A pass that raises is repeated for each half of its requests, down to the request that is at fault: only that one fails.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from astune.backbone.local.learning.prefix_tree import common_prefix
from astune.backbone.local.model.adapters import Adapters
from astune.backbone.local.model.family import TREE, Family
from astune.backbone.local.sampling.draw import draw
from astune.backbone.local.sampling.driver import Driver
from astune.backbone.local.sampling.kv_cache import KVCache
from astune.backbone.local.sampling.state_cache import StateCache
from astune.backbone.lora.settings import SOLE
from astune.backbone.policies.requests import check_answerable
from astune.errors import PolicyError, WorkflowError
from astune.sampling import shorten
from astune.types import FinishReason, Generation, Sampling

T = TypeVar("T")
WORTH_WAITING = 16
"""A request waits for another's prefill if that gives it so many prompt tokens for free."""
TOKENS_BETWEEN_STEPS = 512
"""Most tokens of prompts that are computed between two steps of answers under way."""
WORTH_A_PASS = 64
"""A prompt that is computed with others has so many tokens of a pass at least, or waits for the next."""


@dataclass(eq=False)
class GenerationRequest:
    """One answer under way. `pending` is the token whose logits give the next one."""

    prompt: np.ndarray
    sampling: Sampling
    future: asyncio.Future[Generation]
    seed: int
    stop_window: int
    """Tokens at the end of the answer whose text tells whether a stop text is complete. A token stands for a byte at
    least; a few more for characters and spaces that the cut takes from the first."""
    since: int = 0
    """The step before which it came."""
    adapter: str = SOLE
    slot: int = -1
    pending: int = -1
    unshared: bool = False
    """Nothing is taken over from other slots: what they gave before was no numbers."""

    def begin(self) -> None:
        """Begin the answer; tokens sampled so far are forgotten."""
        self.uniform = random.Random(self.seed)
        self.output_ids: list[int] = []
        self.logprobs: list[float] = []

    def fail(self, error: Exception) -> None:
        """Raise `error` where the answer is waited for, if it still is."""
        failed = PolicyError(f"the model failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        if not self.future.done():
            self.future.set_exception(failed)


class Sampler:
    """A `Policy` over a transformers model whose attention is `local.model.attention`, or transformers' own where
    `family` says so.

    `decode` gives the text of token ids; only requests with `Sampling.stop` need it. With several `adapters` over the
    model each has a policy version of its own, and one pass answers requests of all: see `AdapterSampler`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        slots: int,
        context_length: int,
        decode: Callable[[Sequence[int]], str] | None = None,
        family: Family = TREE,
        adapters: Adapters | None = None,
        driver: Driver | None = None,
    ) -> None:
        self.model = model
        self._driver = driver or Driver()
        self._number = self._driver.enrol()
        self._decode_text = decode
        self.versions = dict.fromkeys((SOLE,) if adapters is None else adapters.names, 0)
        """The policy version of each adapter."""
        self.context_length = context_length
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        parameter = next(model.parameters())
        self._cache: KVCache | StateCache = (
            KVCache(slots, parameter.dtype, parameter.device, adapters)
            if family.layout == "tree"
            else StateCache(model, slots, parameter.device, continues=family.continues, adapters=adapters)
        )
        self._in_pieces = family.layout == "tree" or family.continues
        """True if a prompt may be computed in several passes without beginning anew."""
        self._waiting: list[GenerationRequest] = []
        self._running: dict[int, GenerationRequest] = {}
        self._wanted = np.zeros(slots, np.int64)
        """Tokens that each slot holds once its prompt is computed."""
        self._last_used = np.zeros(slots, np.int64)
        self._clock = 0

    @property
    def policy_version(self) -> int:
        return self.versions[SOLE]

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self.versions[SOLE] = version

    def forget(self, adapter: str = SOLE) -> None:
        """Empty the cache: what comes next no longer depends, to the last bit, on what ran before. Calls that were
        cancelled may still be under way here, as after the last episode of a step that ran out of time: they end."""
        self._drop_cancelled()
        if any(request.adapter == adapter for request in (*self._waiting, *self._running.values())):
            raise PolicyError("the cache was emptied while answers were being sampled")
        self._last_used[self._cache.clear(adapter)] = 0

    def publish(self, adapter: str = SOLE) -> int:
        """The weights changed: what the cache holds is of the old ones."""
        self.forget(adapter)
        self.versions[adapter] += 1
        return self.versions[adapter]

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, adapter: str | None = None) -> Generation:
        """The answer of `adapter`, else of the one that `sampling` names as the model, else of the only one. Raises
        WorkflowError for token ids that the model does not know, PolicyError if it fails on this request."""
        adapter = adapter or sampling.model or SOLE
        if adapter not in self.versions:
            raise PolicyError(f"there is no adapter {adapter!r}; there are: {', '.join(self.versions)}")
        check_answerable(prompt_ids, sampling, self.context_length)
        ids, most = np.asarray(prompt_ids), self._vocabulary - 1
        if ids.dtype.kind != "i" or ids.min() < 0 or ids.max() > most:
            wrong = next(each for each in prompt_ids if not isinstance(each, int) or not 0 <= each <= most)
            raise WorkflowError(f"the prompt has token id {shorten(wrong)}, but the model knows 0 to {most}")
        if sampling.stop and self._decode_text is None:
            raise PolicyError("a sampler made without `decode` cannot look for stop texts")
        loop = asyncio.get_running_loop()
        seed = random.getrandbits(64) if sampling.seed is None else sampling.seed
        window = max((len(text.encode()) for text in sampling.stop), default=0) + 4
        prompt, future = ids.astype(np.int64), loop.create_future()
        request = GenerationRequest(prompt, sampling, future, seed, window, self._driver.steps, adapter)
        request.begin()
        self._waiting.append(request)
        self._driver.begin(self._number, self)
        return await request.future

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def step(self) -> None:
        """Compute a token for each request. An error that no single one caused fails them all, and not the run."""
        try:
            with torch.inference_mode():
                self._admit()
                self._decode()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for request in self._waiting:
            request.fail(error)
        self._waiting.clear()
        for request in list(self._running.values()):
            self._fail_one(request, error)
        for adapter in self.versions:
            self.forget(adapter)

    def _fail_one(self, request: GenerationRequest, error: Exception) -> None:
        """Fail one request and wipe its slot: it may hold what is no number, and the next request in the slot must not
        meet that."""
        self._release(request)
        self._cache.wipe(request.slot)
        request.fail(error)

    def _apart(
        self, requests: Sequence[GenerationRequest], work: Callable[[Sequence[GenerationRequest]], T]
    ) -> list[tuple[Sequence[GenerationRequest], T]]:
        """`work` on all requests at once; where that raises, on each half, and so on: what raises for one request alone
        fails it. Returns the parts that went well and what `work` gave, in order."""
        try:
            return [(requests, work(requests))]
        except Exception as error:
            if len(requests) < 2:
                for request in requests:
                    self._fail_one(request, error)
                return []
        half = len(requests) // 2
        return self._apart(requests[:half], work) + self._apart(requests[half:], work)

    def _admit(self) -> None:
        """Give waiting requests a slot and compute their prompts but for the last token: all of them if nobody waits
        for a token, and a part otherwise. Requests that share a long prefix with one that is being computed wait for
        it and copy it."""
        self._drop_cancelled()
        some_answer = len(self._list_filling()) < len(self._running)
        left = TOKENS_BETWEEN_STEPS if some_answer and self._in_pieces else sys.maxsize
        self._seat()
        while left > 0 and (filling := self._list_filling()):
            left -= self._fill(filling, left)
            self._seat()

    def _seat(self) -> None:
        """First come, first served. Which of two came first between two steps may be chance, where they come from other
        processes: their seeds decide, as a row's last bits depend on its place on some processors."""
        filling, later = self._list_filling(), []
        for request in sorted(self._waiting, key=lambda request: (request.since, request.seed)):
            if len(self._running) == self._cache.slots or not self._take_slot(request, filling):
                later.append(request)
            else:
                filling.append(request)
                self._running[request.slot] = request
                self._wanted[request.slot] = len(request.prompt) - 1
                request.pending = int(request.prompt[-1])
        self._waiting = later

    def _list_filling(self) -> list[GenerationRequest]:
        """List the requests in a slot whose prompt is not computed yet, the first to come first."""
        if not (self._wanted > self._cache.lengths).any():  # as in nearly every step
            return []
        return [request for request in self._running.values() if self._count_missing(request) > 0]

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.future.done()]
        for request in [request for request in self._running.values() if request.future.done()]:
            self._release(request)

    def _count_missing(self, request: GenerationRequest) -> int:
        return int(self._wanted[request.slot] - self._cache.lengths[request.slot])

    def _take_slot(self, request: GenerationRequest, filling: Sequence[GenerationRequest]) -> bool:
        """Find the slot that saves most; False if waiting for a prompt that is being computed saves more."""
        known = self._cache.count_shared(request.prompt[: 0 if request.unshared else -1], request.adapter)
        source = int(known.argmax())
        for other in () if request.unshared else filling:
            shared = common_prefix(request.prompt[:-1], other.prompt[:-1]) if other.adapter == request.adapter else 0
            if shared >= known[source] + WORTH_WAITING:
                return False
        idle = [slot for slot in range(self._cache.slots) if slot not in self._running]
        # A slot that holds nothing but the prompt's beginning is the agent's own from its last turn: nothing to copy.
        extended = [slot for slot in idle if 0 < known[slot] == self._cache.lengths[slot] == known[source]]
        target = extended[0] if extended else min(idle, key=lambda slot: (self._last_used[slot], slot))
        if target != source:
            self._cache.copy_prefix(source, target, int(known[source]))
        self._cache.lengths[target], self._cache.owners[target] = known[source], request.adapter
        self._clock += 1
        self._last_used[target] = self._clock
        request.slot = target
        return True

    def _fill(self, filling: Sequence[GenerationRequest], left: int) -> int:
        """Compute keys and values of at most `left` more tokens of prompts, pieces of similar length side by side; how
        many. No prompt takes what another needs: the oldest has its share, and the short ones come before the long."""
        oldest, *others = filling
        pieces: list[tuple[int, GenerationRequest]] = []
        given = 0
        for number, request in enumerate((oldest, *sorted(others, key=self._count_missing))):
            share = max((left - given) // (len(filling) - number), WORTH_A_PASS)
            size = min(self._count_missing(request), share, left - given)
            if size > 0:
                pieces.append((size, request))
                given += size
        pieces.sort(key=lambda piece: piece[0])
        while pieces:
            shortest = pieces[0][0]  # padding costs what tokens cost, so the long ones go by themselves
            batch = {request: size for size, request in pieces if size <= 2 * shortest + 16}
            pieces = pieces[len(batch) :]
            self._apart(list(batch), partial(self._fill_together, batch))
        return given

    def _fill_together(self, sizes: Mapping[GenerationRequest, int], requests: Sequence[GenerationRequest]) -> None:
        starts = [int(self._cache.lengths[request.slot]) for request in requests]
        texts = [one.prompt[start : start + sizes[one]] for one, start in zip(requests, starts, strict=True)]
        self._cache.extend(self.model, [request.slot for request in requests], texts)

    def _decode(self) -> None:
        """One token for every request whose prompt is computed."""
        filling = set(self._list_filling())
        running = [each for _, each in sorted(self._running.items()) if each not in filling]
        for requests, logits in self._apart(running, self._next_logits) if running else ():
            self._cache.append_each([r.slot for r in requests], [r.pending for r in requests])
            self._advance(requests, logits)

    def _next_logits(self, requests: Sequence[GenerationRequest]) -> torch.Tensor:
        """Logits (n, vocabulary) after the pending tokens of requests in the order of their slots."""
        return self._cache.step(self.model, {r.slot: r.pending for r in requests})

    def _advance(self, requests: Sequence[GenerationRequest], logits: torch.Tensor) -> None:
        """Sample, record, and finish the requests whose answer is complete. `logits` (n, vocabulary)."""
        sampled = [request.sampling for request in requests]
        ids, logprobs = draw(
            logits,
            [each.temperature for each in sampled],
            [each.top_p for each in sampled],
            [each.top_k for each in sampled],
            [request.uniform.random() for request in requests],
        )
        for request, token, logprob in zip(requests, ids.tolist(), logprobs.tolist(), strict=True):
            request.output_ids.append(token)
            request.logprobs.append(logprob)
            request.pending = token
            try:
                self._end_if_complete(request)
            except Exception as error:
                self._fail_one(request, error)

    def _end_if_complete(self, request: GenerationRequest) -> None:
        """Hand out the answer if its last token completed it."""
        sampling, ids = request.sampling, request.output_ids
        if not math.isfinite(request.logprobs[-1]):
            if request.unshared or len(ids) > 1:
                raise ArithmeticError("its logits are not finite")
            self._begin_again(request)
            return
        if request.future.done():
            self._release(request)
            return
        stopped = ids[-1] in sampling.stop_token_ids
        if not stopped and sampling.stop and self._decode_text is not None:
            tail = self._decode_text(ids[-request.stop_window :])
            stopped = any(text in tail for text in sampling.stop)
        if stopped or len(ids) == sampling.max_tokens:
            self._release(request)
            reason: FinishReason = "stop" if stopped else "length"
            version = self.versions[request.adapter]
            request.future.set_result(Generation(tuple(ids), tuple(request.logprobs), version, reason))

    def _begin_again(self, request: GenerationRequest) -> None:
        """Another request's prompt may have spoilt the beginning that this one took over. Alone it is computed anew."""
        self._release(request)
        self._cache.wipe(request.slot)
        request.begin()
        request.unshared = True
        self._waiting.append(request)

    def _release(self, request: GenerationRequest) -> None:
        del self._running[request.slot]
        self._wanted[request.slot] = 0
        self._driver.finished = True
