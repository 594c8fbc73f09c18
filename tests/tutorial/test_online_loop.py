"""The whole loop of tutorial/online in one process: users ask the agent, their thumbs make versions, and the versions
answer better."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("agentscope.middleware", reason="the agent is one of AgentScope 2.x")
pytest.importorskip("torch")
from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.config.schema import Config
from astune.online.place import online_folder
from astune.online.service.models import local_model
from astune.online.service.serving import OnlineService
from astune.online.store.feedback.figures import feedback_figures
from astune.online.store.trace import trace_answer, trace_version
from astune.online.training.following import FollowingJudge
from astune.online.training.trainer import Trainer
from astune.support.resources import tutorial_dir
from tutorial.math_agent.make_tasks import problems
from tutorial.online import agent as agent_module
from tutorial.online.agent import app
from tutorial.online.remarks import Remarks
from tutorial.online.users import Crowd, Habits, is_right

COMMITS, THUMBS, EXAM = 2, 64, 24


@dataclass
class Loop:
    """The parts, and the web service of the agent."""

    config: Config
    service: OnlineService
    trainer: Trainer
    agent: httpx.AsyncClient
    log: Path

    async def exam(self) -> float:
        """Success on held-out questions, greedily."""
        return sum(await asyncio.gather(*map(self._right, islice(problems("heldout", 0), EXAM)))) / EXAM

    async def _right(self, problem: Any) -> bool:
        asked = {"question": problem.query, "user": "examiner", "temperature": 0.0}
        return is_right((await self.agent.post("/ask", json=asked)).json()["answer"], problem.answer)

    async def version(self, crowd: Crowd) -> Any:
        """What a commit made of the thumbs of as many more users, who ask side by side."""
        most = crowd.asked + THUMBS
        await asyncio.gather(*(crowd.user(most) for _ in range(32)))
        row = await self.trainer.tick()
        assert await self.service.versions.poll()
        return row


@asynccontextmanager
async def loop_of(folder: Path, *more: str) -> AsyncIterator[Loop]:
    keys = (f"online.folder={folder}", f"online.commit.every_episodes={THUMBS}", "trainer.learning_rate=1e-3", *more)
    conf = tutorial_dir() / "online" / "online.yaml"
    config = load_config(conf, [f"astune.{key}" for key in keys], for_run=False).config
    async with AsyncExitStack() as stack:
        service = OnlineService(config, local_model(config))
        stack.callback(service.close)
        http = httpx.AsyncClient(transport=httpx.ASGITransport(service.app.asgi), timeout=60)
        # Answers are drawn by the names of conversations, which are others each time: here they are not.
        names = stack.enter_context(pytest.MonkeyPatch.context())
        names.setattr(agent_module, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="user")))
        web = app("http://astune", http)
        await stack.enter_async_context(web.router.lifespan_context(web))
        agent = httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://agent")
        await stack.enter_async_context(agent)
        trainer = Trainer(config, load_engine, service.database, online_folder(config))
        stack.callback(trainer.leave)
        yield Loop(config, service, trainer, agent, folder / "users.jsonl")


async def test_thumbs_make_versions_that_answer_better_while_the_service_goes_on(tmp_path: Path) -> None:
    async with loop_of(tmp_path) as loop:
        before = await loop.exam()
        crowd = Crowd(loop.agent, Habits(), problems("train", 1), 1, loop.log)
        rows = [await loop.version(crowd) for _ in range(COMMITS)]
        after = await loop.exam()
        assert [row.state for row in rows] == ["made"] * COMMITS
        assert [row.version for row in rows] == [1, 2]
        assert after > before + 0.2
        check_trace(loop.service, json.loads(loop.log.read_text(encoding="utf-8").splitlines()[-1]), rows[-1])


@pytest.mark.release
async def test_what_users_say_next_makes_versions_that_answer_better_without_a_thumb(tmp_path: Path) -> None:
    async with loop_of(tmp_path, "online.feedback.follow.judge=rules") as loop:
        before = await loop.exam()
        crowd = Crowd(loop.agent, Habits(remarks=Remarks()), problems("train", 1), 1, loop.log)
        judge = FollowingJudge(loop.config.astune, loop.service.database)
        for _ in range(COMMITS):
            row = None
            while row is None:
                most = crowd.asked + THUMBS // 2
                await asyncio.gather(*(crowd.user(most) for _ in range(32)))
                await judge.judge_due()
                row = await loop.trainer.tick()
            assert row.state == "made" and await loop.service.versions.poll()
        assert await loop.exam() > before + 0.2
        with loop.service.database.reading() as connection:
            kinds = feedback_figures(connection).by_kind
        assert {kind for kind, _ in kinds} == {"number"}


def check_trace(service: OnlineService, user: dict[str, Any], commit: Any) -> None:
    """From what a user was told to the version that came of it, and back."""
    with service.database.reading() as connection:
        answer, version = trace_answer(connection, user["message"]), trace_version(connection, commit.version)
    (thumb,) = answer.feedback
    (episode,) = answer.episodes
    assert (thumb.kind, thumb.value, thumb.state) == ("thumb", float(user["right"]), "trained")
    assert (episode.reward, episode.commit, episode.version) == (thumb.value, commit.number, commit.version)
    assert answer.version == commit.base_version
    assert version.parents == (1, 0)
