"""Play made tasks with the agent, the environment and the judge of the configuration, as an evaluation does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from astune.clients.asking import Inquiry
from astune.clients.reply_cache import CachedReply, ReplyCache, cache_key
from astune.clients.usage import Usage
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.judging.figures import accepts
from astune.monitor.run_dir import RunDir
from astune.rollout.group import run_group
from astune.rollout.setup import RolloutSetup
from astune.selection.select import candidates_of, engine_for
from astune.support.user_code import source_of
from astune.training.candidates import Candidate
from astune.training.model_calls import read_calls
from astune.training.rollout_setup import environment_service, sampling_for
from astune.training.standalone import load_player, set_up_player
from astune.types import Task

MATTERS = ("model", "rollout", "task_judge", "prompts", "tools", "seed")
"""Sections of the configuration that attempts depend on."""


@dataclass(frozen=True)
class ModelPlayer:
    """A model that plays. What it has played, it does not play again; what an API costs counts as that of `asking`."""

    candidate: Candidate
    config: AstuneConfig
    setup: RolloutSetup
    folder: Path
    limit: asyncio.Semaphore
    asking: Inquiry

    async def play(self, task: Task, attempts: int) -> list[bool] | str:
        """True for each attempt that is right; a text says why that cannot be told."""
        workflow = source_of(self.config.rollout.agentscope_learn_protocol or "")
        code = None if workflow is None else workflow.read_text(encoding="utf-8")
        parts = self.config.model_dump(mode="json", include=set(MATTERS))
        key = cache_key([attempts, task.query, task.answer, task.metadata, self.candidate.to_row(), code, parts])
        cache = ReplyCache(Path(str(self.asking.llm.cache)), setting="astune.task_reader.augment.cache")
        if known := cache.get(key):
            self.asking.paid[key] = known.paid
            return [bool(right) for right in json.loads(known.content)]
        models, sampling = self.asking.models, sampling_for(self.config, "sampled")
        if models.budget is not None:
            models.budget.check(models.usage, 0)
        group = await run_group(
            task, attempts, self.setup, seed=self.config.seed, sampling=sampling, label="made", limit=self.limit
        )
        rights = [accepts(one.verdict, 1.0) for one in group.episodes if one.verdict is not None]
        paid = self._cost([one.episode_id for one in group.episodes])
        models.usage += paid
        self.asking.paid[key] = paid
        if len(rights) < attempts:
            errors = [one.error.message for one in group.episodes if one.error is not None]
            return f"an attempt could not be judged: {', '.join(errors[:1])}"
        cache.put(key, CachedReply(json.dumps(rights), self.candidate.name, paid))
        return rights

    def _cost(self, episodes: Sequence[str]) -> Usage:
        """The cost of the calls of an API; those of one's own model have none."""
        if self.candidate.needs_engine:
            return Usage()
        by_episode = read_calls(self.folder)
        calls = [call for name in episodes for call in by_episode.get(name, ()) if not call.whole]
        return sum(
            (Usage(1, 0, one.prompt_tokens or 0, one.completion_tokens or 0, one.cost) for one in calls), Usage()
        )


def find_player(loaded: LoadedConfig, name: str, key: str) -> Candidate:
    """Find who plays, before any call."""
    if loaded.config.astune.rollout.agentscope_learn_protocol is None:
        raise ConfigError(f"{key}: who plays needs the agent: set astune.rollout.agentscope_learn_protocol")
    return candidates_of([name], loaded.config.astune, key)[0]


@asynccontextmanager
async def open_player(
    loaded: LoadedConfig, candidate: Candidate, folder: Path, asking: Inquiry
) -> AsyncIterator[ModelPlayer]:
    """Start what it takes to play, in a folder that gets the log of its calls."""
    config = loaded.config.astune
    load_engine, as_model = engine_for(loaded, [candidate])
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        ready = stack.enter_context(environment_service(config))
        engine = load_player(ready, candidate, load_engine, as_model, stack)
        setup, calls = set_up_player(ready, candidate, engine, RunDir(folder))
        stack.enter_context(closing(calls))
        calls.sampling = sampling_for(ready, "sampled")
        async with setup.open():
            if engine is not None:
                await engine.learner.publish()
            limit = asyncio.Semaphore(config.rollout.max_concurrent)
            yield ModelPlayer(candidate, config, setup, folder, limit, asking)
