"""`astune init --agent` with an agent of the AgentScope that is installed, and what it says of other files."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from astune.cli import main
from astune.monitor import read_episodes
from tests.rows import each_row

pytest.importorskip("torch")
pytest.importorskip("agentscope")

from astune.workflow.agentscope import major_version

AGENTS = {
    1: """
from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter, OpenAIChatFormatter

def build(llm=None, name="clerk"):
    return ReActAgent(name, "You add.", llm, OpenAIChatFormatter())

async def build_later(*, model):
    agent = ReActAgent(name="clerk", sys_prompt="You add.", model=model, formatter=OpenAIChatFormatter())
    return agent

class Clerk(ReActAgent):
    def __init__(self, llm, **others):
        super().__init__("clerk", "You add.", llm, OpenAIChatFormatter(), **others)

def build_own(model):
    return Clerk(model)

def build_whole(name="clerk"):
    from agentscope.model import OpenAIChatModel
    return ReActAgent(name, "You add.", OpenAIChatModel("gpt", api_key="none"), DashScopeChatFormatter())
""",
    2: """
from agentscope import agent as kinds
from agentscope.tool import FunctionTool, Toolkit

def calculator(expression: str) -> str:
    return "84"

def build(llm=None, name="clerk"):
    return kinds.Agent(name, "You add.", llm or None, Toolkit(tools=[FunctionTool(calculator)]))

async def build_later(*, model):
    agent = kinds.Agent(name="clerk", system_prompt="You add.", model=model)
    return agent

class Clerk(kinds.Agent):
    def __init__(self, llm, **others):
        super().__init__("clerk", "You add.", llm, **others)

def build_own(model):
    return Clerk(model)

def build_whole(name="clerk"):
    from agentscope.credential import OpenAICredential
    from agentscope.model import OpenAIChatModel
    model = OpenAIChatModel(credential=OpenAICredential(api_key="none"), model="gpt")
    return kinds.Agent(name, "You add.", model)
""",
}
CHAT_MODEL = "from agentscope.agent import ReActAgent as Kind\nfrom agentscope.model import OpenAIChatModel\n"
FILES = {
    "module.py": "agent = Kind(name='clerk', model=OpenAIChatModel(model_name='gpt'))\n",
    "shared.py": "agent = Kind(model=OpenAIChatModel('gpt'))\ndef build():\n    return agent\n",
    "own.py": "class Clerk(Kind):\n    pass\n",
    "by_name.py": "def build(llm):\n    llm = OpenAIChatModel(llm)\n    return Kind(name='clerk', model=llm)\n",
    "text.py": "def build(model: str | None):\n    return Kind(name='clerk', model=model)\n",
    "runs.py": "async def ask(model, text):\n    agent = Kind(model=model)\n    return await agent(text)\n",
    "needs.py": "def build(model, toolkit):\n    return Kind(model=model, toolkit=toolkit)\n",
}
CLIENT = "import openai\n\nclient = openai.AsyncOpenAI(base_url='http://x')\n"
SHOWN = "let a function take the model and return the agent:\n    def make_agent(model):\n        return ReActAgent("


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENTS[major_version()], encoding="utf-8")


def check_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Let the folder's own check play an episode of the user's agent."""
    monkeypatch.chdir("mine")
    assert runpy.run_path("check.py")["check"]() == 0
    (episodes,) = Path("runs").glob("*/*/episodes/*.jsonl")
    (record,) = read_episodes(episodes)
    assert record.episode.error is None and record.episode.reward is not None
    assert "You add." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["build", "build_later", "Clerk", "build_own", "build_whole"])
def test_an_agent_becomes_a_workflow(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "mine", "--yes", "--agent", f"agent.py:{name}"]) == 0
    check_folder(monkeypatch, capsys)


def test_a_terminal_is_asked_what_is_not_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard, terminal = os.openpty()
    with os.fdopen(keyboard, "w") as types, os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        types.write("agent.py\n\n\nverl\nbuild_later\n")
        types.flush()
        assert main(["init", "mine", "--model", "tiny"]) == 0
    said = capsys.readouterr()
    assert "The model, as" not in said.out + said.err
    assert (
        "agent.py has the agents build, build_later, Clerk, build_own, build_whole; which one: " in said.out + said.err
    )
    assert "backbone: verl" in Path("mine/agent.yaml").read_text(encoding="utf-8")
    check_folder(monkeypatch, capsys)


@each_row(
    ("file", "said"),
    [
        (
            "agent.py",
            "it has the agents build, build_later, Clerk, build_own, build_whole; name one, as --agent agent.py:build",
        ),
        ("agent.py:biuld", "no workflow or agent 'biuld'. Did you mean 'build'? It has build, build_later, Clerk"),
        ("module.py", "module.py:3: agent has an agent, but no model to hand it"),
        ("shared.py", "shared.py:3: agent has an agent"),
        ("own.py", "own.py:3: Clerk has an agent"),
        ("module.py:agent", SHOWN),
        ("by_name.py", "by_name.py:5: build has an agent"),
        ("text.py", "text.py:4: build has an agent"),
        ("runs.py", "runs.py:4: ask has an agent"),
        ("needs.py", "needs.py:3: build also needs toolkit; an episode has only a model to hand it"),
        ("client.py", "client.py:3 makes a client of OpenAI. Let a workflow take the client of its episode"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_what_to_change(
    capsys: pytest.CaptureFixture[str], file: str, said: str
) -> None:
    for name, text in FILES.items():
        Path(name).write_text(CHAT_MODEL + text, encoding="utf-8")
    Path("client.py").write_text(CLIENT, encoding="utf-8")
    assert main(["init", "mine", "--yes", "--agent", file]) == 2
    assert said in capsys.readouterr().err
    assert not Path("mine").exists()


def test_a_workflow_goes_before_the_agent_that_it_uses() -> None:
    workflow = "\nasync def solve(task, tuner):\n    await build(tuner.model()).reply(task.query)\n"
    Path("agent.py").write_text(AGENTS[major_version()] + workflow, encoding="utf-8")
    assert main(["init", "mine", "--yes", "--agent", "agent.py"]) == 0
    assert "../agent.py:solve" in Path("mine/agent.yaml").read_text(encoding="utf-8")
