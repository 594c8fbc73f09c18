"""An agent of AgentScope 2.x that answers questions about an inbox, and the reader of its tasks."""

from collections.abc import Sequence

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit
from inbox_tools import Mailbox
from inboxes import SPLITS, make_inbox, task_row

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.task_reader.table_reader import TableReader
from astune.workflow.agentscope import training_defaults


class InboxAgent(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        box = Mailbox(make_inbox(task.metadata["inbox"]))
        agent = Agent(
            name="clerk",
            system_prompt="Use the tools.",
            model=tuner.model("clerk"),
            toolkit=Toolkit(tools=[FunctionTool(tool) for tool in box.tools]),
            **training_defaults(),  # tools run without asking, no clock in the prompt
        )
        await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=box.answer)


class Questions(Sequence):
    """All questions about some inboxes."""

    def __init__(self, numbers: range) -> None:
        self._questions = [question for number in numbers for question in make_inbox(number).questions]

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, index):
        return task_row(self._questions[index])

    def place(self, index: int) -> str:
        """What an error calls the row."""
        return f"question {self._questions[index].question_id}"


class InboxReader(TableReader):
    def rows(self, split: str) -> Questions:
        return Questions(SPLITS[split])
