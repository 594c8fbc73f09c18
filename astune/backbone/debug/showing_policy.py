"""A policy that shows each call while it happens, and otherwise is the one it wraps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from astune.backbone.debug.screen import Screen
from astune.context_tracker.chat_format import ChatFormat
from astune.monitor.episodes import common_start
from astune.types import Generation, Policy, Sampling


class ShowingPolicy:
    """Passes every call on unchanged; what is shown is decoded from the very tokens that are sent and sampled."""

    def __init__(self, policy: Policy, chat_format: ChatFormat, screen: Screen) -> None:
        self._policy = policy
        self._chat_format = chat_format
        self._screen = screen
        self._shown: list[tuple[int, ...]] = []
        self._calls = 0

    def episode_started(self) -> None:
        """From here on calls are counted from 1. What was shown, the tools for example, is not shown again."""
        self._calls = 0

    @property
    def context_length(self) -> int:
        return self._policy.context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self._calls += 1
        number, prompt = self._calls, tuple(prompt_ids)
        known = max((common_start(earlier, prompt) for earlier in self._shown), default=0)
        self._screen.call_started(number, known, len(prompt), self._chat_format.decode(prompt[known:]))
        self._shown.append(prompt)
        started = time.perf_counter()
        generation = await self._policy.generate(prompt_ids, sampling)
        seconds = time.perf_counter() - started
        self._shown.append(prompt + generation.output_ids)
        text = self._chat_format.decode(generation.output_ids)
        self._screen.call_done(number, generation, text, self._chat_format.parse(generation.output_ids), seconds)
        return generation
