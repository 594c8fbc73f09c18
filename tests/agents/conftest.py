"""Real AgentScope agents, of the line that is installed, on a policy that answers from a script.

Each workflow of `agentscope1_workflows.py` and `agentscope2_workflows.py` is played as an episode, and compared with
the one recorded in `golden/`, if there is one: those without show nothing there that others do not. After a change that
is meant, record anew with each line installed, and read the diff:

    REGENERATE=1 python -m pytest tests/agents
"""

from __future__ import annotations

import asyncio
import functools
import importlib
from importlib import metadata

import pytest

from astune.config.schema import RolloutConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.rollout.episode import run_episode
from astune.rollout.setup import RolloutSetup
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling, Task
from astune.workflow.workflow_base import as_workflow
from tests.agents.golden import golden_path

CONTEXT_LENGTH = 8192


def installed_line() -> int:
    """1 or 2; 0 if AgentScope is not installed."""
    try:
        return int(metadata.version("agentscope").split(".")[0])
    except metadata.PackageNotFoundError:
        return 0


if installed_line():
    # Its client hands the standard error of now on to servers; in a test that captures output that is no file.
    importlib.import_module("mcp.client.stdio")


def pytest_generate_tests(metafunc):
    """A test that takes `workflow` runs once for each workflow of the installed line; `recorded`: each golden one."""
    for name in {"workflow", "recorded"} & set(metafunc.fixturenames):
        from tests.agents.answers import ANSWERS

        line = installed_line()
        workflows = ANSWERS.get(line, {})
        metafunc.parametrize(
            name, [each for each in workflows if name == "workflow" or golden_path(line, each).exists()]
        )


@pytest.fixture(scope="session")
def chat_format(tmp_path_factory):
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def line():
    return installed_line()


@pytest.fixture(scope="session")
def play(chat_format, line):
    """`play(workflow)` gives the episode of the workflow of that name, and the calls of the policy; played once."""
    if not line:
        pytest.skip("AgentScope is not installed")
    from tests.agents.answers import ANSWERS, script

    workflows = importlib.import_module(f"tests.agents.agentscope{line}_workflows")

    @functools.cache
    def play_once(workflow):
        policy = ScriptedPolicy(script(ANSWERS[line][workflow]), chat_format, context_length=CONTEXT_LENGTH)
        setup = RolloutSetup(
            policy=policy,
            chat_format=chat_format,
            workflow_factory=as_workflow(getattr(workflows, workflow)),
            judge=None,
            config=RolloutConfig(),
            judge_timeout=60.0,
        )
        task = Task("trip", "Where is it warm?")
        run = run_episode(task, setup, episode_id=f"train/{workflow}/0", seed=1, sampling=Sampling(max_tokens=512))
        return asyncio.run(run), policy.calls

    return play_once
