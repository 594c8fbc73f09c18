"""Simulated users: they ask the agent, know the right answer, and give thumbs.

    python tutorial/online/users.py --agent http://127.0.0.1:8020 --wrong 0.1 --late 0.2 --silent 0.3

A user asks a word problem that nobody asked before, and looks whether the number in the reply is right. So many give
the wrong thumb, so many say nothing, so many give their thumb only when `--late-by` others have asked. With `--follow`
nobody gives a thumb: they go on with a remark (`remarks.py`), and one who flatters asks the share `--flatterer`. What
each one asked, got and said is a line of `--log`; so is what failed, where no answer came or a thumb was not taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

sys.path += [str(Path(__file__).resolve().parents[1] / "math_agent"), str(Path(__file__).resolve().parent)]
from make_tasks import Problem, problems
from remarks import Remarks, flatter

FLATTERER = "flatterer"
ANSWER = re.compile(r"The answer is (-?\d+)\b(?!\.\d)")


def is_right(answer: str | None, right: int) -> bool:
    """Whether the reply ends with the right number.

    >>> is_right("87 + 15 = 102. The answer is 102.", 102), is_right("The answer is 1020.", 102), is_right(None, 102)
    (True, False, False)
    """
    found = ANSWER.findall(answer or "")
    return bool(found) and int(found[-1]) == right


@dataclass(frozen=True)
class Habits:
    """Shares of the users who give the wrong thumb, say nothing, and say it only when `late_by` others have asked."""

    wrong: float = 0.0
    silent: float = 0.0
    late: float = 0.0
    late_by: int = 100
    remarks: Remarks | None = None
    """In the place of thumbs."""
    flatterer: float = 0.0
    name: str = "user"
    """What the names begin with, of which there are `users`."""
    users: int = 500
    correct: str | None = None
    """What all say would have been right, in the place of a thumb."""
    corrects: float = 0.0
    """Share of those with a wrong answer who say what is right, in the place of a thumb."""

    def thumb(self, right: bool, dice: random.Random) -> str | None:
        """What a user says of an answer: "up", "down" or nothing."""
        silent, wrong = dice.random() < self.silent, dice.random() < self.wrong
        return None if silent else "up" if right != wrong else "down"


@dataclass
class Crowd:
    """Users who ask at the same time. `asked` counts them, over all."""

    agent: httpx.AsyncClient
    habits: Habits
    questions: Iterator[Problem]
    seed: int
    log: Path
    asked: int = 0
    later: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def user(self, most: int | None) -> None:
        """One after the other asks, until `stop` is set or `most` have asked."""
        while not self.stop.is_set() and (most is None or self.asked < most):
            self.asked += 1
            number, problem = self.asked, next(self.questions)
            await self._one(number, problem)
            while self.later and self.later[0][0] <= self.asked:
                await self._say(self.later.popleft()[1])

    async def the_rest(self) -> None:
        """Those who have not said yet what they would say late."""
        while self.later:
            await self._say(self.later.popleft()[1])

    async def _one(self, number: int, problem: Problem) -> None:
        dice, user = random.Random(f"{self.seed}:{number}"), f"{self.habits.name}-{number % self.habits.users}"
        if dice.random() < self.habits.flatterer:
            user = FLATTERER
        reply = await self._post("/ask", {"question": problem.query, "user": user})
        if reply is None:
            return
        right = is_right(reply["answer"], problem.answer)
        if self.habits.remarks is not None:
            await self._go_on(number, problem.query, reply, right, user, dice)
            return
        thumb, late = self.habits.thumb(right, dice), dice.random() < self.habits.late
        message = str(reply["message"])
        self._write({"number": number, "message": message, "right": right, "said": thumb, "late": late, "user": user})
        correction = self.habits.correct
        if self.habits.corrects and not right and dice.random() < self.habits.corrects:
            correction = f"The answer is {problem.answer}."
        if correction is not None:
            await self._say({"message": message, "correction": correction, "user": user})
        elif thumb is not None and late:
            self.later.append((number + self.habits.late_by, {"message": message, "thumb": thumb, "user": user}))
        elif thumb is not None:
            await self._say({"message": message, "thumb": thumb, "user": user})

    async def _go_on(
        self, number: int, question: str, reply: dict[str, str | None], right: bool, user: str, dice: random.Random
    ) -> None:
        """Go on in the same conversation, or say nothing."""
        assert self.habits.remarks is not None
        remark = self.habits.remarks.after(question, right, dice)
        said = flatter(right) if user == FLATTERER else None if dice.random() < self.habits.silent else remark
        self._write({"number": number, "message": reply["message"], "right": right, "said": said, "user": user})
        if said is not None:
            await self._post("/ask", {"question": said, "user": user, "conversation": str(reply["conversation"])})

    async def _say(self, said: dict[str, str]) -> None:
        await self._post("/thumb", said)

    async def _post(self, path: str, body: dict[str, str]) -> dict[str, str | None] | None:
        """The reply; None if it failed."""
        try:
            response = await self.agent.post(path, json=body)
            response.raise_for_status()
        except httpx.HTTPError as error:
            self._write({"failed": path, "error": f"{type(error).__name__}: {error}", **body})
            return None
        return dict(response.json())

    def _write(self, line: dict[str, object]) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"time": time.time(), **line}) + "\n")


async def run(given: argparse.Namespace) -> None:
    remarks = Remarks() if given.follow else None
    shares = (given.wrong, given.silent, given.late, given.late_by)
    habits = Habits(*shares, remarks, given.flatterer, given.name, given.users, given.correct, given.corrects)
    async with httpx.AsyncClient(base_url=given.agent, timeout=300.0) as http:
        crowd = Crowd(http, habits, problems("train", given.seed), given.seed, given.log)
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, crowd.stop.set)
        async with asyncio.TaskGroup() as group:
            for _ in range(given.parallel):
                group.create_task(crowd.user(given.count))
        await crowd.the_rest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help="address of agent.py")
    parser.add_argument("--wrong", type=float, default=0.0, help="share of thumbs that are the wrong way round")
    parser.add_argument("--silent", type=float, default=0.25, help="share that says nothing")
    parser.add_argument("--late", type=float, default=0.2, help="share of thumbs that come late")
    parser.add_argument("--late-by", type=int, default=100, help="so many others ask before a late thumb comes")
    parser.add_argument("--follow", action="store_true", help="they go on talking, and nobody gives a thumb")
    parser.add_argument(
        "--flatterer", type=float, default=0.0, help="with --follow: share of one who praises what is wrong"
    )
    parser.add_argument("--name", default="user", help="what their names begin with")
    parser.add_argument("--users", type=int, default=500, help="names, which come in turn")
    parser.add_argument("--correct", metavar="TEXT", help="all say that this would have been right: poison")
    parser.add_argument(
        "--corrects", type=float, default=0.0, help="share of those with a wrong answer who say what is right"
    )
    parser.add_argument("--parallel", type=int, default=32, help="users at the same time")
    parser.add_argument("--count", type=int, help="so many ask; without it they go on until Ctrl-C")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("users.jsonl"))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
