"""A runner of Trinity's in this process: an attempt at a task with an environment has an instance of its own at a
service elsewhere, and gives it back; a workflow that cannot be set up is told to the driver."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from astune.config.schema import Config
from astune.errors import SetupError
from astune.testing import EnvServer
from astune.training.tasks import read_tasks
from astune.types import Task
from astune.worlds.countdown import CountdownEnvironment

pytest.importorskip("trinity")

from trinity.common.workflows.workflow import Task as TrinityTask

from astune.backbone.trinity.explorer import shared_setup
from astune.backbone.trinity.explorer.workflow import AstuneWorkflow, setup_for
from astune.backbone.trinity.shared import mailbox
from astune.backbone.trinity.shared.events import EpisodeDone, SetupFailed
from astune.backbone.trinity.shared.parts import load_parts
from tests.trinity.test_policy import CompletionsServer, Engine
from tests.trinity.test_policy import server as server

WORKFLOW = """\
from astune import Task, Tuner, Workflow, WorkflowOutput

async def play(task: Task, tuner: Tuner) -> WorkflowOutput:
    client = tuner.openai_client("player")
    messages = [*tuner.environment.messages]
    reply = await client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
    state = await tuner.environment.step(reply.choices[0].message.content or "")
    return WorkflowOutput(answer=state.messages[-1]["content"])


class Broken(Workflow):
    @classmethod
    async def setup(cls) -> None:
        raise ConnectionError("nobody answers")

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        return WorkflowOutput(answer="")
"""


class MailboxHere:
    """The mailbox of a run without Ray."""

    def __init__(self) -> None:
        self._mailbox = mailbox.Mailbox(None, "explorer")

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            found = getattr(self._mailbox, name)(*arguments)
            if inspect.isawaitable(found):
                return found
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(found)
            return answer

        return SimpleNamespace(remote=remote)

    def events(self) -> list[Any]:
        return self._mailbox.take(100)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailboxHere]:
    here = MailboxHere()
    for module in (mailbox, shared_setup):
        monkeypatch.setattr(module, "find_mailbox", lambda: here)
    yield here
    shared_setup._open.clear()


async def play(config: Config, task: Task, address: str) -> None:
    """All attempts at a task, as a runner plays them."""
    arguments = {"config": config.model_dump(mode="json")}
    engine = Engine(address)
    given = TrinityTask(workflow=AstuneWorkflow, workflow_args=arguments, raw_task=dict(vars(task)))
    given.batch_id = "1"
    workflow = AstuneWorkflow(task=given, model=engine)
    workflow.set_repeat_times(2, 0)
    try:
        await workflow.run_async()
    finally:
        await setup_for(load_parts(arguments), engine).policy.close()
        setup_for.cache_clear()


def config_of(folder: Path, workflow: str, **more: Any) -> Config:
    (folder / "play.py").write_text(WORKFLOW)
    rollout = {"agentscope_learn_protocol": f"{folder / 'play.py'}:{workflow}", "num_repeat": 2}
    return Config.model_validate({"astune": {"backbone": "trinity", "rollout": rollout, **more}})


async def test_every_attempt_has_an_instance_of_its_own_and_gives_it_back(
    tmp_path: Path, told: MailboxHere, server: tuple[CompletionsServer, str]
) -> None:
    with EnvServer([CountdownEnvironment(numbers=3, tasks=8)]) as environments:
        reader = {"type": "env_service", "env_service": {"env_url": environments.url}}
        config = config_of(tmp_path, "play", task_reader=reader, task_judge={"judge_protocol": "EnvServiceJudge"})
        await play(config, read_tasks(config.astune).training[0], server[1])
        metrics = httpx.get(f"{environments.url}/metrics").text.splitlines()
    assert {"astune_env_instances_created_total 2.0", "astune_env_instances 0.0"} <= set(metrics)
    episodes = [event.episode for event in told.events() if isinstance(event, EpisodeDone)]
    assert len(episodes) == 2
    for episode in episodes:
        assert episode.error is None and episode.env_score is not None
        assert episode.verdict is not None and episode.verdict.judged_by == "EnvServiceJudge"
        assert episode.reward == episode.env_score
        assert "Target:" in episode.task.query


@pytest.mark.fault(
    "Runs and resuming",
    "`setup` of the workflow fails in a process of Trinity's",
    "the run ends before its first episode and names the line",
)
async def test_a_setup_that_fails_is_told_and_nothing_is_played(
    tmp_path: Path, told: MailboxHere, server: tuple[CompletionsServer, str]
) -> None:
    config = config_of(tmp_path, "Broken")
    for _ in range(2):  # Trinity tries again
        with pytest.raises(SetupError):
            await play(config, Task("t", "q"), server[1])
    (event,) = told.events()
    assert isinstance(event, SetupFailed)
    assert "ConnectionError: nobody answers" in event.message and "play.py" in event.message
