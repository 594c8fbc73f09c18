"""Whole episodes whose tools act in a workspace: what the sandbox meets is data, what breaks it is never trained."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

pytest.importorskip("agentscope.workspace", reason="AgentScope 2.x")
if shutil.which("bwrap") is None:
    pytest.skip("needs bubblewrap", allow_module_level=True)

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import Toolkit
from agentscope.workspace import LocalWorkspace

from astune.config.rollout import WorkspaceConfig
from astune.errors import JudgeError
from astune.types import StopReason, Verdict, WorkflowOutput
from astune.workflow.agentscope import training_defaults
from astune.workspaces import open_box
from astune.workspaces.pool import WorkspacePool
from tests.passing_time import pass_time


@pytest.fixture
def run_in(run_one):
    """`await run_in({"type": ...}, workflow, answers)` gives the episode."""

    async def run(settings, workflow, answers=("4",), **options):
        workspace = WorkspaceConfig.model_validate({"type": "AstuneSandbox", "warm": 0, **settings})
        return await run_one(workflow, answers, workspace=workspace, workspaces=WorkspacePool(workspace), **options)

    return run


async def reply_with_tools(task, tuner):
    workspace = tuner.workspace
    toolkit = Toolkit(tools=await workspace.list_tools())
    prompt = await workspace.get_instructions()
    agent = Agent(
        name="solver", system_prompt=prompt, model=tuner.model("solver"), toolkit=toolkit, **training_defaults()
    )
    reply = await agent.reply(UserMsg("user", task.query))
    return WorkflowOutput(answer=reply.get_text_content())


CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo 6 > n; cat n; sleep 100"}}\n</tool_call>'


async def test_an_agent_with_bash_acts_in_its_sandbox_and_its_limits_are_figures(run_in, caplog):
    settings = {"limits": {"command_seconds": 0.5}}
    episode = await run_in(settings, reply_with_tools, [CALL, "4"], context_length=32768)
    assert (episode.stop_reason, episode.reward) == (StopReason.COMPLETED, 1.0)
    assert episode.tools["Bash"].calls == 1 and "timed out" in str(episode.turns[1].messages)
    assert episode.metrics["sandbox/time"] == 1.0
    assert "act on this machine" not in caplog.text


class GradesInABox:
    async def judge(self, task, episode):
        async with open_box(episode.artifacts) as box:
            await box.write("/workspace/test.py", b"print(open('/workspace/answer').read())")
            graded = await box.run(["python3", "-I", "test.py"])
        return Verdict(float(graded.stdout.split() == [b"4"]), judged_by="GradesInABox")


async def writes_its_answer(task, tuner):
    script = "echo 4 > answer; ln -s /dev/null test.py; setsid sh -c 'sleep 50; echo 5 > answer' > /dev/null 2>&1 &"
    await tuner.workspace.get_backend().exec_shell(["sh", "-c", script])
    return WorkflowOutput(answer="done")


@pytest.mark.fault(
    "Judges",
    "an agent leaves links and processes where its judge runs tests",
    "the judge has a sandbox of its own with a copy of the files",
)
async def test_a_judge_grades_a_copy_of_the_files(run_in):
    episode = await run_in({"artifacts_mb": 1}, writes_its_answer, judge=GradesInABox())
    assert (episode.stop_reason, episode.reward) == (StopReason.COMPLETED, 1.0)


async def test_files_that_are_not_kept_are_no_reward(run_in):
    async def writes_much(task, tuner):
        await tuner.workspace.get_backend().write_file("/workspace/big", bytes(2_000_000))
        return WorkflowOutput(answer="4")

    for settings, workflow in (({}, writes_its_answer), ({"artifacts_mb": 1}, writes_much)):
        episode = await run_in(settings, workflow, judge=GradesInABox())
        assert (episode.stop_reason, episode.verdict) == (StopReason.ERROR, None)
        assert (episode.error.stage, episode.error.kind) == ("judge", JudgeError.__name__)


async def test_a_workflow_grades_its_agent_in_a_box_of_its_own(run_in):
    async def grades(task, tuner):
        await tuner.workspace.get_backend().write_file("/workspace/answer", b"4")
        async with tuner.artifacts() as box:
            read = await box.read("/workspace/answer")
        return WorkflowOutput(answer=read.decode(), reward=float(read == b"4"))

    assert (await run_in({}, grades)).reward == 1.0


@pytest.mark.fault(
    "Tools and environments",
    "the sandbox of an episode breaks, or none can be made",
    "the episode ends as an error of its environment, is not judged and not trained; the run goes on",
)
async def test_a_sandbox_that_breaks_is_the_environments_error(run_in, monkeypatch):
    async def breaks(task, tuner):
        os.kill(tuner.workspace.sandbox.pid, signal.SIGKILL)
        return await reply_with_tools(task, tuner)

    broken = await run_in({}, breaks, [CALL, "4"], context_length=32768)
    monkeypatch.setenv("PATH", "/nowhere")
    missing = await run_in({}, reply_with_tools)
    for episode, said in ((broken, "has ended"), (missing, "bubblewrap")):
        assert (episode.stop_reason, episode.verdict, episode.error.stage) == (StopReason.ERROR, None, "environment")
        assert said in episode.error.message
    assert missing.turns == ()


class Slow(LocalWorkspace):
    async def initialize(self):
        pass_time(1000.0)
        await super().initialize()


async def test_making_a_workspace_takes_nothing_of_the_episodes_time(run_in, tmp_path):
    settings = {"type": f"{__name__}:Slow", "options": {"workdir": str(tmp_path)}}
    episode = await run_in(settings, reply_with_tools, episode_timeout=600.0, context_length=32768)
    assert episode.stop_reason is StopReason.COMPLETED


async def test_without_one_the_workflow_is_told_how_to_get_it(run_one):
    episode = await run_one(reply_with_tools)
    assert "set astune.rollout.workspace.type" in episode.error.message
