"""A planner that says where a long problem splits, and a worker that computes."""

import functools
import re
import sys
from pathlib import Path

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit
from problems import list_sentences

from astune import Episode, Task, Tuner, Verdict, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_agent"))
from calculator import calculator  # the demo's

ASK = "How many are the first problem?"
SUM = "There are {} coins in the first box and {} coins in the second box. How many coins are there in all?"


class Team(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        *stories, _ = list_sentences(task.query)
        split = await plan(stories, tuner)
        found: list[str] = []
        if 0 < split < len(stories):
            found = [await compute(" ".join(part), tuner) for part in (stories[:split], stories[split:])]
            if all(found):
                found.append(await compute(SUM.format(*found), tuner))
        return WorkflowOutput(answer=" ".join(found))


def judge(task: Task, episode: Episode) -> Verdict:
    """The share of the calculations that are right, each in its place; success is all of them."""
    answer = "" if episode.output is None else str(episode.output.answer)
    found, right = answer.split(" "), str(task.answer).split(" ")
    hits = sum(one == other for one, other in zip(found, right, strict=False))
    return Verdict(hits / len(right), passed=hits == len(right), reason=f"{hits} of {len(right)} are right")


async def plan(sentences: list[str], tuner: Tuner) -> int:
    """How many sentences are the first problem; 0 for an answer that says nothing. The text stands where the tiny model
    expects the result of a tool, and so answers with one of the last numbers."""
    text = " ".join(f"{sentence} {number}" for number, sentence in enumerate(sentences, start=1))
    ask = [
        {"role": "system", "content": "End with: The answer is N."},
        {"role": "user", "content": f"<tool_response>\n{text}\n{ASK}\n</tool_response>"},
    ]
    reply = await tuner.openai_client("planner").chat.completions.create(model="policy", messages=ask, max_tokens=2)
    number = re.fullmatch(r"The answer is (\d)", reply.choices[0].message.content or "")
    return int(number[1]) if number else 0


async def compute(problem: str, tuner: Tuner) -> str:
    """What the calculator said to the first call of the demo's agent; nothing where it made none."""
    results: list[str] = []

    @functools.wraps(calculator)
    def noted(expression: str) -> str:
        results.append(calculator(expression))
        return results[-1]

    agent = Agent(
        name="worker",
        system_prompt="Use the calculator. End with: The answer is N.",
        model=tuner.model("worker"),
        toolkit=Toolkit(tools=[FunctionTool(noted)]),
        **training_defaults(),
    )
    await agent.reply(UserMsg(name="user", content=problem))
    return results[0].replace(" ", "_") if results else ""
