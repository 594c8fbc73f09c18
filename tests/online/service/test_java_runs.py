"""Runs as AgentScope Java's training client plays them: no headers, so calls belong together by what was said before,
and then feedback with the ids of all the replies of a run."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from astune.config.online import FeedbackConfig
from astune.online.store.commits import Wanted
from astune.online.store.feedback.judgements import judgements
from astune.online.training.commit_input import plan_now
from astune.online.training.plan import RatedAnswers
from astune.store import tables
from astune.store.database import Database
from tests.online.service.conftest import configured, user
from tests.online.training.world import World
from tests.store.databases import new_url

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
MOST_CALLS = 4


def look(at: int) -> str:
    return f'<tool_call>\n{{"name": "look", "arguments": {{"at": {at}}}}}\n</tool_call>'


@dataclass
class Run:
    """One run of a task. `told` is what its client said of it: ids and reward."""

    task: str
    number: int
    messages: list[dict]
    ids: list[str] = field(default_factory=list)
    told: dict[tuple[str, ...], float] = field(default_factory=dict)

    async def call(self, client) -> bool:
        """Whether it goes on."""
        reply = await client.chat(self.messages, tools=TOOLS)
        self.ids.append(reply["id"])
        message = reply["choices"][0]["message"]
        self.messages.append(message)
        for call in message.get("tool_calls") or ():
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "name": "look", "content": "7"})
        return bool(message.get("tool_calls"))

    async def reward(self, client, value: float) -> None:
        body = {"msg_ids": self.ids, "reward": value, "task_id": self.task, "run_id": str(self.number)}
        assert (await client.post("/feedback", json=body)).status_code == 200
        self.told[tuple(self.ids)] = value


def begun(task: str, number: int) -> Run:
    return Run(task, number, [{"role": "system", "content": "Be brief."}, user(f"Task {task}")])


def judged(client) -> Counter:
    with client.service.database.reading() as connection:
        return Counter((each.msg_ids, each.reward) for each in judgements(connection, FeedbackConfig()))


def groups(client) -> list[tuple[RatedAnswers, ...]]:
    rules = {"commit": {"min_episodes": 1}}
    with client.service.database.reading() as connection:
        return plan_now(connection, configured("", online=rules), Wanted(), 0, time.time(), explicit=True).groups


def told(runs: list[Run]) -> Counter:
    return Counter(one for run in runs for one in run.told.items())


async def test_48_interleaved_runs_with_equal_beginnings_are_48_episodes(store, make_service, tmp_path):
    """Six tasks of eight runs, which look twice in the same place and then differ: first calls all at once, second ones
    in turns, last ones all at once."""
    runs = [begun(str(task), number) for number in range(8) for task in range(6)]
    answers = iter([look(1)] * 96 + [f"It is {number}." for number in range(48)])
    async with make_service(store, lambda prompt: next(answers)) as client:
        await asyncio.gather(*(run.call(client) for run in runs))
        for run in runs:
            await run.call(client)
        await asyncio.gather(*(run.call(client) for run in runs))
        for run in runs:
            await run.reward(client, float(run.number % 2))
        assert judged(client) == told(runs)
        assert sorted(len({each.judgement.run_id for each in group}) for group in groups(client)) == [8] * 6
        trained = await advantages(client.service.database, tmp_path)
    for run in runs:
        assert {trained[msg_id] for msg_id in run.ids} == {1.0 if run.number % 2 else -1.0}, "what its own run is worth"
    assert len(trained) == 3 * 48


async def advantages(database: Database, folder: Path) -> dict[str, float]:
    """Of each answer, as a commit trains it."""
    world = World(database, folder)
    world.now = time.time()
    world.ask()
    trainer = world.trainer()
    row = await trainer.tick()
    assert row is not None and row.state == "made"
    trainer.leave()
    learned = sa.select(tables.turns.c.msg_id, tables.samples.c.advantage).join(tables.samples)
    with database.reading() as connection:
        return {msg_id: round(advantage, 6) for msg_id, advantage in connection.execute(learned)}


async def played(chance: random.Random, run: Run, clients: list) -> None:
    """Calls with pauses; some are sent twice as the reply was lost, and each may reach another process; a history that
    became long may lose its oldest call; a reward may come early, late or never."""
    for _ in range(MOST_CALLS):
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        if not chance.randrange(6):
            await chance.choice(clients).chat(run.messages, tools=TOOLS)
        if not await run.call(chance.choice(clients)):
            break
        if not chance.randrange(8):
            await run.reward(chance.choice(clients), chance.choice([0.0, 0.5, 1.0]))
        if len(run.messages) > 4 and not chance.randrange(4):
            del run.messages[2:4]
    if chance.randrange(5):
        await run.reward(chance.choice(clients), chance.choice([0.0, 0.5, 1.0]))


@settings(max_examples=8, deadline=None, phases=[Phase.generate])  # a smaller seed is no simpler case
@given(seed=st.integers(0, 2**16))
def test_each_episode_holds_the_answers_of_its_own_run_alone(seed, tmp_path_factory, make_service):
    async def play():
        url = new_url("sqlite", tmp_path_factory.mktemp("runs"))
        runs = [begun(str(number % 2), number) for number in range(8)]
        chances = [random.Random(f"{seed}/{number}") for number in range(8)]  # not drawn: calls run side by side
        model = random.Random(seed)

        def answer(prompt: str) -> str:
            return model.choice([look(1), look(1), look(2), "It is 7."])

        async with make_service(url, answer) as one, make_service(url, answer) as two:
            await asyncio.gather(*(played(*each, [one, two]) for each in zip(chances, runs, strict=True)))
            assert judged(one) == told(runs)
            whose = {msg_id: run.number for run in runs for msg_id in run.ids}
            found = [[whose[each.msg_ids[0]] for each in group] for group in groups(one)]
        assert all(len(set(group)) == len(group) for group in found), "nobody is its own sibling"
        for task in "01":
            once = {run.number for run in runs if run.task == task and len(run.told) == 1}
            assert not once or any(once <= set(group) for group in found), "all that were rewarded once are siblings"

    asyncio.run(play())
