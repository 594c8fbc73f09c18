"""An agent with a prompt that has a name, and an engine whose model knows a task more with each update, and four more
where it is told to look twice."""

from __future__ import annotations

from typing import Any

from astune import Episode, Task, Tuner, Verdict, WorkflowOutput
from astune.context_tracker.model_dir import load_chat_format
from astune.support.resources import tiny_model_dir
from astune.testing import CountingLearner, ScriptedPolicy
from astune.training.engine import Engine

PLAYED: list[str] = []


async def asker(task: Task, tuner: Tuner) -> WorkflowOutput:
    told = [{"role": "system", "content": tuner.prompt("system", default="Look.")}]
    ask = [*told, {"role": "user", "content": task.query}]
    reply = await tuner.openai_client().chat.completions.create(model="m", messages=ask)
    PLAYED.append(tuner.episode_id)
    return WorkflowOutput(answer=reply.choices[0].message.content)


async def judge(task: Task, episode: Episode) -> Verdict:
    assert episode.output is not None
    if episode.episode_id.startswith("train"):  # one of the two attempts is better, so that every step is an update
        return Verdict(float(episode.episode_id.endswith("/0")))
    right = int(str(task.answer)) < int(str(episode.output.answer))
    return Verdict(float(right), right)


def load(config: Any) -> Engine:
    chat_format = load_chat_format(config.model, tiny_model_dir())
    policy = ScriptedPolicy(lambda prompt: str(learner.updates + 4 * ("Look twice." in prompt)), chat_format)
    learner = CountingLearner(policy)
    return Engine(policy, learner, chat_format)
