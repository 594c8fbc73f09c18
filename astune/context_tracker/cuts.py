"""Conversations that near the end of the model's context are cut, whatever agent has them (`astune.rollout.context`).

    the agent's history       Q A1 R1 A2 R2 A3 R3     Q: what stands before the first answer, A: answers, R: results
    discard, keep 1           Q A1 -  A2 -  A3 R3
    summarise, keep 1         Q+S A3 R3               S: what the model says to  Q A1 R1 A2 R2 + the prompt
    restart                   Q+S                     S: what the model says to  Q A1 R1 A2 R2 A3 R3 + the prompt

The agent keeps its whole history and sends it with each call. A cut once made stays: every later request that begins
with the same history is cut there in the same way, so that prompts only grow until the next cut. A summary is a turn
like any other. Only calls of the policy are cut; raw texts are not.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.config.rollout import ContextConfig
from astune.context_tracker.calls import ChatRequest
from astune.context_tracker.prompt.messages import CallPlaces, Meaning, Message, content_text, meaning, without_system
from astune.context_tracker.tracker import ContextTracker, PreparedCall
from astune.ropes import common_start
from astune.sampling import ContextCut

TAKEN_OUT = "(taken out to make room)"
"""Stands in the place of a tool result."""
PROMPT = (
    "Your context is nearly full. Sum up what matters for the task: what was asked, what was found, with names, "
    "numbers and ids, and what is still to be done. You will go on from your summary alone."
)
"""Asks for one, unless the configuration does."""
GO_ON = "What was done so far, in short:\n\n"
"""Stands before a summary."""


@dataclass(frozen=True)
class _Cut:
    """The messages that stand for a history; neither has the system messages at the start."""

    history: Sequence[Meaning]
    messages: Sequence[Message]


class CutTracker(ContextTracker):
    """A tracker that cuts conversations where they get too long."""

    cuts_context = True

    def __init__(self, config: ContextConfig, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._config = config
        self._standing: defaultdict[str, list[_Cut]] = defaultdict(list)
        self._cutting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def _prepare(self, agent: str, request: ChatRequest, source: str | None, trainable: bool) -> PreparedCall:
        """The request cut where a cut was made, and where it is too long by now. Raises what a summary
        raises, too."""
        if source not in self._models.names or request.prompt is not None:
            return await super()._prepare(agent, request, source, trainable)
        ready = await self._prepare_cut(agent, request, source)
        at = self._config.at
        most = at * self.length_of(source) if at <= 1 else at
        if len(ready.prompt.ids) < most:
            return ready
        waits = self._cutting[agent].locked()
        async with self._cutting[agent]:
            if waits:  # a call beside this one may have made the cut that it needs
                ready = await self._prepare_cut(agent, request, source)
            tokens = len(ready.prompt.ids)
            if tokens < most:
                return ready
            cut = await self._make_cut(agent, request, ready.request, tokens, trainable, source)
            return ready if cut is ready.request else await super()._prepare(agent, cut, source, trainable)

    async def _prepare_cut(self, agent: str, request: ChatRequest, source: str | None) -> PreparedCall:
        """The request with the cuts that were made, whether or not it fits."""
        cut = self._as_cut(agent, request)
        return PreparedCall(cut, len(self.turns), await self._build(agent, cut, source, must_fit=False))

    async def count_tokens(self, agent: str, request: ChatRequest, *, source: str | None = None) -> int:
        """Count the tokens of the prompt with the cuts that were made."""
        if source in self._models.names and request.prompt is None:
            request = self._as_cut(agent, request)
        return await super().count_tokens(agent, request, source=source)

    def _as_cut(self, agent: str, request: ChatRequest) -> ChatRequest:
        """The request with the messages that stand for the longest history that it begins with."""
        if not self._standing[agent]:
            return request
        history, messages = _history(request.messages), request.messages
        begun = [cut for cut in self._standing[agent] if common_start(cut.history, history) == len(cut.history)]
        if not begun:
            return request
        cut = max(begun, key=lambda cut: len(cut.history))
        lead = len(messages) - len(history)
        return replace(request, messages=[*messages[:lead], *cut.messages, *messages[lead + len(cut.history) :]])

    async def _make_cut(
        self,
        agent: str,
        request: ChatRequest,
        now: ChatRequest,
        tokens: int,
        trainable: bool,
        source: str | None,
    ) -> ChatRequest:
        """Cut the conversation of `request`, which is `now` after the cuts before, once more. Without anything to take
        out it stays as it is."""
        history = _history(request.messages)
        lead = len(request.messages) - len(history)
        head, messages = request.messages[lead : _first_answer(request.messages)], now.messages[lead:]
        strategy = self._config.strategy
        assert strategy != "none"
        start, stop = _first_answer(messages), self._first_kept(messages)
        summary = None
        if strategy == "discard":
            out = [place for place in range(start, stop) if _is_long_result(messages[place])]
            left = [{**each, "content": TAKEN_OUT} if at in out else each for at, each in enumerate(messages)]
        else:
            out = list(range(start, stop))
            if out:
                summary, text = await self._sum_up(agent, now, lead + stop, trainable, source)
                left = _join_users([*head, {"role": "user", "content": GO_ON + text}, *messages[stop:]], len(head))
        if not out:
            return now
        self._standing[agent].append(_Cut(history, copy.deepcopy(left)))
        return replace(self._as_cut(agent, request), cut=ContextCut(strategy, len(out), tokens, summary))

    def _first_kept(self, messages: Sequence[Message]) -> int:
        """The place of the first message that stays: the answer of which so many are kept, or what no answer follows
        and is no result."""
        if self._config.strategy == "restart":
            said = [at for at, message in enumerate(messages) if message["role"] in ("assistant", "tool")]
            return said[-1] + 1 if said else 0
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        return answers[-self._config.keep] if len(answers) >= self._config.keep else 0

    async def _sum_up(
        self, agent: str, now: ChatRequest, stop: int, trainable: bool, source: str | None
    ) -> tuple[int, str]:
        """The number of the turn that sums up the first `stop` messages, and its text."""
        messages = [*now.messages[:stop], {"role": "user", "content": self._config.prompt or PROMPT}]
        asked = ChatRequest(
            _join_users(messages, stop), now.tools, may_call=False, temperature=now.temperature, top_p=now.top_p
        )
        source = source if self._config.model is None else self._config.model
        ready = await super()._prepare(agent, asked, source, trainable)
        answers = await self._answer(agent, ready, 1, trainable, source)
        return len(self.turns) - 1, answers[0].message["content"] or ""


def _history(messages: Sequence[Message]) -> Sequence[Meaning]:
    calls = CallPlaces(messages)
    return without_system([meaning(messages, index, calls) for index in range(len(messages))])


def _first_answer(messages: Sequence[Message]) -> int:
    return next((at for at, each in enumerate(messages) if each["role"] == "assistant"), len(messages))


def _is_long_result(message: Message) -> bool:
    return bool(message["role"] == "tool" and len(content_text(message)) > len(TAKEN_OUT))


def _join_users(messages: Sequence[Message], place: int) -> list[Message]:
    """The messages, that at `place` made one with its neighbours that are a user's, too: templates may want users and
    answers to take turns."""
    joined: list[Message] = []
    for at, message in enumerate(messages):
        if at in (place, place + 1) and joined and joined[-1]["role"] == message["role"] == "user":
            joined[-1] = {**joined[-1], "content": f"{content_text(joined[-1])}\n\n{content_text(message)}"}
        else:
            joined.append(message)
    return joined
