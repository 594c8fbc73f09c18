"""An agent that answers what the model says, and an engine whose model knows more tasks the more it was trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astune import Episode, Task, Tuner, Verdict, WorkflowOutput
from astune.context_tracker.model_dir import load_chat_format
from astune.errors import JudgeError, TrainingError
from astune.support.resources import tiny_model_dir
from astune.testing import CountingLearner, ScriptedPolicy
from astune.training.engine import Engine
from astune.types import Generation

LOADED: list[str] = []
"""Paths of the models that engines were made of."""
PLAYED: list[str] = []


async def asker(task: Task, tuner: Tuner) -> WorkflowOutput:
    ask = [{"role": "user", "content": task.query}]
    reply = await tuner.openai_client().chat.completions.create(model="m", messages=ask)
    PLAYED.append(tuner.episode_id)
    if Path(task.metadata.get("stop", "")).is_file():
        raise KeyboardInterrupt
    return WorkflowOutput(answer=reply.choices[0].message.content)


async def judge(task: Task, episode: Episode) -> Verdict:
    assert episode.output is not None
    if episode.episode_id.startswith("train"):  # one of the two attempts is better, so that every step is an update
        return Verdict(float(episode.episode_id.endswith("/0")))
    right = int(task.answer) < int(str(episode.output.answer))
    return Verdict(float(right), right)


async def judge_in_parts(task: Task, episode: Episode) -> Verdict:
    """Every attempt has a `format`, only those at even tasks have a `depth`; of task 5 it cannot tell."""
    number = int(task.answer)
    if number == 5:
        raise JudgeError("nobody knows")
    verdict = await judge(task, episode)
    return replace(verdict, metrics={"format": number % 3 / 2} | ({"depth": 200.0 + number} if number % 2 == 0 else {}))


class Larger:
    """Of two attempts the one that says the larger number is better. Alone, none can be judged."""

    def __init__(self, config: Any) -> None:
        pass

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        raise JudgeError("there is nothing to compare it with")

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        if task.answer == "5":
            raise JudgeError("nobody knows")
        said = [int(str(episode.output and episode.output.answer)) for episode in episodes]
        return [Verdict(sum(number > other for other in said) / (len(said) - 1)) for number in said]


async def cannot_tell(task: Task, episode: Episode) -> Verdict:
    raise JudgeError("nobody knows")


def load_lost(config: Any) -> Engine:
    """An engine whose servers die while it is asked."""
    engine, asked = load(config), asyncio.Event()

    async def never(prompt_ids: Any, sampling: Any) -> Generation:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    async def lost() -> TrainingError:
        await asked.wait()
        return TrainingError("server 0 died")

    engine.policy.generate = never  # type: ignore[method-assign]
    return replace(engine, lost=lost)


def load(config: Any) -> Engine:
    """The model says how often it was trained: it knows the tasks of smaller numbers."""
    LOADED.append(config.model.path)
    chat_format = load_chat_format(config.model, tiny_model_dir())
    policy = ScriptedPolicy(lambda prompt: str(learner.updates), chat_format)
    learner = CountingLearner(policy)
    return Engine(policy, learner, chat_format)
