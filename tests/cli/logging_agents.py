"""Agents that say much, for the tests of the run's log."""

import logging
import os
import signal
import warnings

from loguru import logger as loguru_logger
from openai import AsyncOpenAI

from astune import Task, Tuner, Workflow, WorkflowOutput

loguru_logger.remove()  # as many do who want another format
logger = logging.getLogger(__name__)


def attempt(tuner: Tuner) -> WorkflowOutput:
    return WorkflowOutput(answer="4", reward=float(tuner.episode_id[-1] in "02"))


async def answered(task: Task, tuner: Tuner) -> WorkflowOutput:
    ask = [{"role": "user", "content": task.query}]
    await tuner.openai_client().chat.completions.create(model="m", messages=ask)
    return attempt(tuner)


async def speaks(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Logs in every way; asks an API with a key, too; fails at the second task."""
    logger.debug("mine: debug")
    logger.warning("mine: \x1b[2J%s", "warning")
    loguru_logger.info("mine: loguru")
    warnings.warn("mine: warned", stacklevel=1)
    logging.getLogger("deaf").propagate = False
    logging.getLogger("deaf").warning("mine: deaf")
    secret = os.environ["LOG_TEST_KEY"]
    try:
        raise ValueError("mine: raised")
    except ValueError:
        logger.exception("mine: failed")
    async with AsyncOpenAI(
        api_key=secret, base_url=os.environ["LOG_TEST_URL"], default_query={"key": secret}
    ) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    if task.query == "2?":
        raise KeyError("mine: price")
    return await answered(task, tuner)


async def brief(task: Task, tuner: Tuner) -> WorkflowOutput:
    logger.setLevel(logging.INFO)
    logger.info("mine: info")
    try:
        raise ValueError("mine: raised")
    except ValueError:
        logger.exception("mine: failed")
    return await answered(task, tuner)


async def sets_up_logging(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Takes the process's logging for its own, as a program does."""
    logging.basicConfig(level=logging.INFO, format="own: %(message)s", force=True)
    logger.info("after basicConfig")
    return await answered(task, tuner)


async def killed(task: Task, tuner: Tuner) -> WorkflowOutput:
    if tuner.episode_id.startswith("train/2/"):
        logger.warning("the last words")
        os.kill(os.getpid(), signal.SIGKILL)
    return await answered(task, tuner)


class NeverBegins(Workflow):
    @classmethod
    async def setup(cls) -> None:
        raise ValueError("no browser")

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        return attempt(tuner)
