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
from astune.config.tools import ToolsConfig
from astune.errors import JudgeError
from astune.tools import ToolServers
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
    settings = {"limits": {"command_seconds": 2.0}}
    episode = await run_in(settings, reply_with_tools, [CALL, "4"], context_length=32768)
    assert (episode.stop_reason, episode.reward) == (StopReason.COMPLETED, 1.0)
    assert (episode.tools["Bash"].calls, episode.tools["Bash"].causes) == (1, {"time_limit": 1})
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
    broken = await run_in({}, breaks(reply_with_tools), [CALL, "4"], context_length=32768)
    monkeypatch.setenv("PATH", "/nowhere")
    missing = await run_in({}, reply_with_tools)
    for episode, said in ((broken, "has ended"), (missing, "bubblewrap")):
        assert (episode.stop_reason, episode.verdict, episode.error.stage) == (StopReason.ERROR, None, "environment")
        assert said in episode.error.message
    assert missing.turns == ()
    assert broken.tools["Bash"].causes == {"sandbox": 1}


def breaks(workflow):
    async def run(task, tuner):
        os.kill(tuner.workspace.sandbox.pid, signal.SIGKILL)
        return await workflow(task, tuner)

    return run


async def test_what_a_broken_sandbox_does_is_an_option(run_in):
    answers, options = [BASH, "4"], {"context_length": 32768}
    broken = await run_in({}, breaks(reply_with_all_tools), answers, **options)
    assert (broken.stop_reason, broken.tools["Bash"].causes) == (StopReason.ERROR, {"sandbox": 1})
    goes_on = ToolServers(ToolsConfig.model_validate({"on_failure": {"sandbox": "no_credit"}}))
    broken = await run_in({}, breaks(reply_with_all_tools), answers, tools=goes_on, **options)
    assert (broken.stop_reason, broken.no_credit) == (StopReason.COMPLETED, frozenset({0}))


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


BASH = '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo 6 > n; cat n"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "Bash", "arguments": {"cmd": "ls"}}\n</tool_call>'


async def reply_with_all_tools(task, tuner):
    names = [tool["function"]["name"] for tool in tuner.tools.openai]
    assert names[:1] == ["Bash"] and len({*names}) == len(names)
    agent = Agent(
        name="solver",
        system_prompt="",
        model=tuner.model("solver"),
        toolkit=tuner.tools.toolkit(),
        **training_defaults(),
    )
    reply = await agent.reply(UserMsg("user", task.query))
    return WorkflowOutput(answer=reply.get_text_content())


async def test_the_episodes_tools_contain_those_of_its_workspace(run_in):
    episode = await run_in({}, reply_with_all_tools, [BASH, WRONG, "4"], context_length=32768)
    assert (episode.stop_reason, episode.error, episode.reward) == (StopReason.COMPLETED, None, 1.0)
    assert (episode.tools["Bash"].calls, episode.tools["Bash"].causes) == (2, {"malformed": 1})
    assert "6" in str(episode.turns[1].messages[-1])
