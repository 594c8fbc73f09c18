"""An agent for rows as AgentRL has them, its browse tool, and a scorer.

{"id": "1", "query": "Inbox 0. Which cost has ticket 663?", "answer": "29", "scorer": "same", "answer_schema": "answer"}

It searches the inbox that the question names, and has mails browsed: a second model reads a long mail for a purpose and
reports. `browse.yaml`, or the file that the environment variable BROWSE names, says which models do; where the first
fails the next one is asked. Without any the mail is handed on as it is.
"""

import functools
import os
import re
from pathlib import Path

import yaml
from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit
from inbox_tools import Mailbox
from inboxes import make_inbox
from pydantic import BaseModel, Field

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.clients.chat_models import ChatModels
from astune.config.chat_models import AskedModelsConfig
from astune.errors import AstuneError
from astune.workflow.agentscope import training_defaults

FORMS = {"answer": "<answer>...</answer>", "boxed": r"\boxed{...}"}


class BrowseConfig(AskedModelsConfig):
    """Which models report on mails, and on which."""

    shortest: int = Field(1500, description="characters from which a mail is reported on, not handed on as it is")
    longest: int = Field(60_000, description="characters after which a mail is cut")
    purpose: str = Field("Answer the question.", description="what for, where the agent does not say")


class Report(BaseModel):
    rational: str
    evidence: str
    report: str


class Browser:
    """Reads mails for agents."""

    def __init__(self, config: BrowseConfig) -> None:
        self._config = config
        self._models = ChatModels(config, key="browse") if config.models else None

    async def report(self, text: str, purpose: str) -> str:
        """Raises PolicyError or JudgeError where no model gives a report."""
        if self._models is None or len(text) < self._config.shortest:
            return text
        prompt = (
            f"Purpose: {purpose or self._config.purpose}\n\nMail:\n{text[: self._config.longest]}\n\n"
            'Reply as {"rational": "what matters here", "evidence": "what the mail says of it, word for word", '
            '"report": "what follows"}.'
        )
        reply = await self._models.ask([{"role": "user", "content": prompt}], Report)
        return f"Evidence: {reply.value.evidence}\nReport: {reply.value.report}"


@functools.cache
def browser(path: str) -> Browser:
    """One for all episodes, so that a model that failed rests for all of them."""
    return Browser(BrowseConfig.model_validate(yaml.safe_load(Path(path).read_text(encoding="utf-8"))))


class Researcher(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        box = Mailbox(make_inbox(int(re.search(r"Inbox (\d+)", task.query)[1])))
        reader = browser(os.environ.get("BROWSE", str(Path(__file__).with_name("browse.yaml"))))
        failed: list[AstuneError] = []

        async def browse(message_id: int, purpose: str = "") -> str:
            """Have a mail read for a purpose."""
            try:
                return await reader.report(box.read_email(message_id), purpose)
            except AstuneError as error:  # no fault of the policy's: the attempt does not count
                failed.append(error)
                return "Error: nobody can read mails now."

        form = FORMS[task.metadata.get("answer_schema") or "answer"]
        agent = Agent(
            name="researcher",
            system_prompt=f"Search the inbox, browse mails, then answer with {form}.",
            model=tuner.model("researcher"),
            toolkit=Toolkit(tools=[FunctionTool(box.search_emails), FunctionTool(browse)]),
            **training_defaults(),
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        if failed:
            raise failed[0]
        return WorkflowOutput(answer=reply.get_text_content())


async def same(model_answer: str, ground_truth: dict) -> float:
    return float(model_answer.strip().casefold() == ground_truth["answer"].casefold())
