"""Episodes to record: agents of every habit on a policy that answers from a script, played and played again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from astune.config.schema import Config, RolloutConfig
from astune.monitor import EpisodeLog, RunDir
from astune.recordings.replay import EpisodeReplay, ReplayObserver
from astune.rollout.episode import run_episode
from astune.rollout.setup import RolloutSetup
from astune.testing import ScriptedPolicy
from astune.training.rollout_setup import NoPolicy
from astune.types import Episode, Sampling, Task
from astune.workflow.workflow_base import as_workflow

CONTEXT_LENGTH = 8192
LIMITS = ("max_turns", "max_episode_tokens", "episode_timeout", "allow_inexact")
"""Options that are of the section `astune.rollout`."""


def setup_of(workflow, policy, chat_format, **options):
    limits = {name: options.pop(name) for name in list(options) if name in LIMITS}
    return RolloutSetup(
        policy=policy,
        chat_format=chat_format,
        workflow_factory=as_workflow(workflow),
        config=RolloutConfig(**limits),
        **{"judge": None, "judge_timeout": 60.0, **options},
    )


def play(workflow, answers, chat_format, *, task=None, sampling=None, policy=None, **options):
    """The episode that the workflow makes of the answers."""
    policy = policy or ScriptedPolicy(answers, chat_format, context_length=CONTEXT_LENGTH)
    setup = setup_of(workflow, policy, chat_format, **options)
    return run(setup, task or Task("t1", "What is 6 * 7?", answer="42"), sampling)


def run(setup, task, sampling=None):
    sampling = sampling or Sampling(max_tokens=512)
    return asyncio.run(run_episode(task, setup, episode_id=f"train/{task.task_id}/0", seed=1, sampling=sampling))


def replay(workflow, recorded, chat_format, *, sampling=None, policy=None, until=None, patience=1.0, **options):
    """The recorded episode played again."""
    setup = setup_of(workflow, policy or NoPolicy(CONTEXT_LENGTH), chat_format, **options)
    playing = EpisodeReplay(recorded, until=until, patience=patience)
    return run(replace(setup, observer=ReplayObserver(playing)), recorded.task, sampling)


def kept(folder: Path, config: Config, *episodes: Episode, step: int = 0, phase: str = "debug") -> Path:
    """The log of a run in `folder` that has played these episodes."""
    run_dir = RunDir(folder)
    folder.mkdir(exist_ok=True)
    run_dir.save_config(config)
    with EpisodeLog(run_dir) as log:
        paths = [log.write(episode, step=step, phase=phase) for episode in episodes]
    return paths[0]


def installed_line():
    """The line of AgentScope that is installed, 1 or 2; 0 if none is."""
    try:
        return int(metadata.version("agentscope").split(".")[0])
    except metadata.PackageNotFoundError:
        return 0
