"""Workflows for tests of `astune.rollout.workers`."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from astune import Task, Tuner, Workflow, WorkflowOutput

HERE = Path(os.environ.get("ASTUNE_TEST_FOLDER", "."))
logger = logging.getLogger("agents")


async def ask(tuner: Tuner, *texts: str) -> None:
    """One conversation, of as many turns as there are texts."""
    client, messages = tuner.openai_client(), []
    for text in texts:
        messages.append({"role": "user", "content": text})
        answer = await client.chat.completions.create(model="m", messages=messages)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))


def first_time(name: str) -> bool:
    try:
        (HERE / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def is_second(task: Task, tuner: Tuner) -> bool:
    return task.query == "1?" and tuner.episode_id.endswith("/1")


async def talks(task: Task, tuner: Tuner) -> WorkflowOutput:
    """As many turns as the number of the attempt says."""
    number = int(tuner.episode_id[-1])
    await ask(tuner, *[f"{task.query} {turn}" for turn in range(number + 1)])
    return WorkflowOutput(answer="4", reward=number / 8)


async def sees_torch(task: Task, tuner: Tuner) -> WorkflowOutput:
    await ask(tuner, task.query)
    return WorkflowOutput(answer="4", reward=float("torch" in sys.modules))


async def dies_once(task: Task, tuner: Tuner) -> WorkflowOutput:
    if is_second(task, tuner) and first_time("died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return await talks(task, tuner)


async def dies(task: Task, tuner: Tuner) -> WorkflowOutput:
    if is_second(task, tuner):
        (HERE / "deaths").open("a").write("+")
        os.kill(os.getpid(), signal.SIGKILL)
    return await talks(task, tuner)


async def all_die(task: Task, tuner: Tuner) -> WorkflowOutput:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@dataclass
class Answer:
    text: str


class AnswerWithLock(Answer):
    def __init__(self) -> None:
        super().__init__("4")
        self.lock = threading.Lock()


async def gives_object(task: Task, tuner: Tuner) -> WorkflowOutput:
    await ask(tuner, task.query)
    return WorkflowOutput(answer=AnswerWithLock() if tuner.episode_id.endswith("/0") else Answer("4"))


class JudgeOfObjects:
    """Says where it judged."""

    def __init__(self, config: object) -> None:
        pass

    async def judge(self, task: Task, episode: object) -> object:
        from astune import Verdict

        answer = episode.output.answer
        assert type(answer).__name__ == "Answer"
        return Verdict(float(answer.text), reason=str(os.getpid()))


class JudgeOfGroups(JudgeOfObjects):
    async def judge_group(self, task: Task, episodes: list) -> list:
        from astune import Verdict

        return [Verdict(float(len(episodes)), reason=str(os.getpid())) for _ in episodes]


async def without_reward(task: Task, tuner: Tuner) -> WorkflowOutput:
    await ask(tuner, task.query)
    return WorkflowOutput(answer=Answer("4"))


async def endless(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Calls no model: its client would be imported first, which takes long on a busy machine."""
    if tuner.episode_id.endswith("/1"):
        await asyncio.Event().wait()
    return WorkflowOutput(answer="4", reward=1.0)


async def says_things(task: Task, tuner: Tuner) -> WorkflowOutput:
    print("printed by", tuner.episode_id)
    sys.stdout.buffer.write(b"and the last line has no end")
    logger.warning("logged by %s", tuner.episode_id)
    await ask(tuner, task.query)
    return WorkflowOutput(answer="4", reward=1.0)


async def holds_on(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Keeps a connection open, and the event loop from turning."""
    connection = connected()
    while connection:
        pass


async def waits(task: Task, tuner: Tuner) -> WorkflowOutput:
    connection = connected()
    try:
        await asyncio.Event().wait()
    finally:
        connection.sendall(b"stopped")


def connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(HERE / "socket"))
    return connection


class BadSetup(Workflow):
    @classmethod
    async def setup(cls) -> None:
        raise RuntimeError("no connection to the warehouse")

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        raise AssertionError


class Opened(Workflow):
    """Is set up and torn down in each worker."""

    opened = False

    @classmethod
    async def setup(cls) -> None:
        cls.opened = True
        (HERE / f"setup-{os.getpid()}").touch()

    @classmethod
    async def teardown(cls) -> None:
        (HERE / f"teardown-{os.getpid()}").touch()

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        await ask(tuner, task.query)
        return WorkflowOutput(answer="4", reward=float(self.opened))


async def acts(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Says in its answer which process it was, and has a reward if nobody was in its workspace before it."""
    await ask(tuner, task.query)
    seen = await tuner.workspace.get_backend().exec_shell(["sh", "-c", "ls; touch mine; echo $$ > /tmp/mine"])
    return WorkflowOutput(answer=str(os.getpid()), reward=float((seen.exit_code, seen.stdout) == (0, b"")))
