"""Players of the inbox that need no model: `python tutorial/email_search/inbox_players.py` says what each is worth.

oracle             searches, reads the newest mails first until one states the fact, and cites that one
read_everything    reads all that its search shows, and cites it all
dont_know          says "I don't know" at once
chance             calls tools at random
inventor           answers at once, with a source that nobody showed it
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from inbox_judge import COLUMNS, InboxJudge
from inbox_tools import Mailbox
from inboxes import SPLITS, UNKNOWN, Question, make_inbox, task_row

from astune import Episode, Task, Turn, Verdict, WorkflowOutput
from astune.config.judges import TaskJudgeConfig
from astune.types import StopReason

SYSTEM = "Use the tools."
CLOSING = "Done."


def _tool(name: str, description: str, **parameters: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"properties": parameters, "required": [*parameters], "type": "object"}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = (
    _tool("search_emails", "Find mails, new ones first.", keywords={"type": "string"}),
    _tool("read_email", "Read a mail.", message_id={"type": "integer"}),
    _tool(
        "return_final_answer",
        "Answer, with the ids of the mails that prove it.",
        answer={"type": "string"},
        sources={"items": {"type": "integer"}, "type": "array"},
    ),
)
"""As AgentScope writes them."""


class Talk:
    """An episode as a player makes it, in OpenAI's messages."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.box = Mailbox(make_inbox(question.inbox))
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question.query},
        ]

    def call(self, name: str, **arguments: Any) -> str:
        """What the tool says."""
        called = {"name": name, "arguments": json.dumps(arguments)}
        call_id = f"call_{len(self.messages)}"
        self.messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": called}],
            }
        )
        result: str = getattr(self.box, name)(**arguments)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        return result

    def search(self, keywords: str) -> list[int]:
        """Ids of what the search shows, newest first."""
        return [int(found) for found in re.findall(r"^\d+", self.call("search_emails", keywords=keywords), re.M)]

    @property
    def keywords(self) -> str:
        return str(self.question.ticket)

    def finish(self, answer: str, sources: list[int]) -> None:
        self.call("return_final_answer", answer=answer, sources=sources)
        self.messages.append({"role": "assistant", "content": CLOSING})

    def episode(self, task: Task) -> Episode:
        """The same as an episode of a rollout, without tokens."""
        turns = tuple(
            Turn(
                "agent", (1,), (2,), (0.0,), 0, "stop", messages=tuple(self.messages[:place]), tools=TOOLS, response=one
            )
            for place, one in enumerate(self.messages)
            if one["role"] == "assistant"
        )
        return Episode(task.task_id, task, turns, (), StopReason.COMPLETED, WorkflowOutput(answer=self.box.answer))


def stated(body: str, question: Question) -> str | None:
    """The value that a mail gives the fact that is asked for; None if it gives none."""
    topic = question.topic
    for text in (*topic.corrected, *topic.told):
        pattern = re.escape(text).replace(r"\{value\}", r"(?P<value>[\d:-]+)").replace(r"\{old\}", r"[\d:-]+")
        if found := re.match(pattern, body):
            return found["value"]
    return None


def oracle(talk: Talk, rng: random.Random) -> None:
    for mail in talk.search(talk.keywords):
        value = stated(talk.call("read_email", message_id=mail), talk.question)
        if value is not None:
            return talk.finish(value, [mail])
    return talk.finish(UNKNOWN, [])


def read_everything(talk: Talk, rng: random.Random) -> None:
    shown = talk.search(talk.keywords)
    bodies = [talk.call("read_email", message_id=mail) for mail in shown]
    values = [value for body in bodies if (value := stated(body, talk.question)) is not None]
    talk.finish(values[0] if values else UNKNOWN, shown)


def dont_know(talk: Talk, rng: random.Random) -> None:
    talk.finish(UNKNOWN, [])


def chance(talk: Talk, rng: random.Random) -> None:
    for _ in range(rng.randrange(6)):
        if rng.random() < 0.5:
            talk.call("search_emails", keywords=rng.choice(talk.question.query.split()))
        else:
            talk.call("read_email", message_id=rng.randrange(10, 100))
    talk.finish(rng.choice([UNKNOWN, talk.question.topic.draw(rng)]), [rng.randrange(10, 100)])


def inventor(talk: Talk, rng: random.Random) -> None:
    talk.finish(talk.question.topic.draw(rng), [rng.randrange(10, 100)])


Player = Callable[[Talk, random.Random], None]
PLAYERS: tuple[Player, ...] = (oracle, read_everything, dont_know, chance, inventor)


def play(player: Player, question: Question) -> Verdict:
    talk = Talk(question)
    player(talk, random.Random(f"{player.__name__} {question.question_id}"))
    row = task_row(question)
    task = Task(row["id"], row["query"], answer=row["answer"], metadata=row)
    return asyncio.run(InboxJudge(TaskJudgeConfig()).judge(task, talk.episode(task)))


def table(split: str = "validation") -> list[tuple[str, float, float, float, float, float]]:
    """Of each player: mean reward, share right, tool accuracy, argument accuracy, recall."""
    questions = [question for number in SPLITS[split] for question in make_inbox(number).questions]
    rows = []
    for player in PLAYERS:
        verdicts = [play(player, question) for question in questions]
        figures = [[one.reward, one.passed, *(one.metrics[name] for name in COLUMNS)] for one in verdicts]
        rows.append((player.__name__, *map(fmean, zip(*figures, strict=True))))
    return rows


def main() -> None:
    print("player             reward    right    tools     args   recall")
    for name, reward, *shares in table():
        print(f"{name:15}  {reward:8.3f}" + "".join(f"  {share:7.1%}" for share in shares))


if __name__ == "__main__":
    main()
