"""A model that is loaded in this process writes tasks and checks them, as a chat API does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any

from astune.clients.chat import ChatReply, TokenUsage
from astune.clients.reply_cache import cache_key
from astune.config.chat_models import JudgeModelConfig
from astune.config.load import LoadedConfig
from astune.context_tracker.calls import ChatRequest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.errors import ConfigError, ContextOverflow, WorkflowError
from astune.selection.select import candidates_of, engine_for
from astune.training.candidates import Candidate, load_candidate
from astune.types import FinishReason, Policy, Sampling

SEEDS = 2**31


def find_writer(loaded: LoadedConfig, name: str, key: str) -> Candidate:
    """Raises ConfigError for what is not loaded here."""
    candidate = candidates_of([name], loaded.config.astune, key)[0]
    if not candidate.needs_engine:
        raise ConfigError(f"{key}: {name} is an API: name it in models, and a model that is loaded here in writer")
    return candidate


def stand_in(candidate: Candidate) -> JudgeModelConfig:
    """Its entry among `models`: other weights are another model for the cache, and nothing costs money."""
    name = f"{candidate.name} {candidate.mark}".strip()
    return JudgeModelConfig(base_url="http://local", model=name, prompt_price=0.0, completion_price=0.0)


@asynccontextmanager
async def open_writer(loaded: LoadedConfig, candidate: Candidate) -> AsyncIterator[LocalChat]:
    """Load the model while something asks it."""
    load_engine, as_model = engine_for(loaded, [candidate])
    with closing(load_candidate(loaded.config.astune, candidate, load_engine, as_model=as_model)) as engine:
        await engine.learner.publish()
        yield LocalChat(engine.policy, engine.chat_format)


class LocalChat:
    """Answers requests as `ChatClient` does, each by itself. Equal requests get other answers, by their number."""

    def __init__(self, policy: Policy, chat_format: ChatFormat) -> None:
        self._policy, self._format = policy, chat_format
        self._asked: Counter[str] = Counter()

    async def complete(self, body: Mapping[str, Any]) -> ChatReply:
        """Raises WorkflowError for a request that does not fit the model's context."""
        key = json.dumps(body["messages"])
        seed = int(cache_key([key, self._asked[key]])[:8], 16) % SEEDS
        self._asked[key] += 1
        sampling = Sampling(body["max_tokens"], temperature=body["temperature"])
        tracker = ContextTracker(self._policy, self._format, sampling, max_turns=1, seed=seed)
        try:
            answer = await tracker.chat("writer", ChatRequest(body["messages"]))
        except ContextOverflow as error:
            raise WorkflowError(f"{error}: astune.task_reader.augment.chunk_words makes passages shorter") from error
        usage = TokenUsage(answer.prompt_tokens, answer.completion_tokens)
        ended: FinishReason = "length" if answer.finish_reason == "length" else "stop"
        return ChatReply(answer.message, ended, None, None, None, usage)
