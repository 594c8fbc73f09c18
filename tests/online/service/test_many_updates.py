"""Version after version becomes champion while conversations go on."""

import asyncio
import os
import weakref
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from astune.online.service.models import local_model
from astune.online.service.serving import Model, OnlineService
from astune.online.store.aliases import promote
from astune.online.store.versions import ModelVersion, add
from astune.testing import ScriptedPolicy
from tests.online.service.conftest import Client, configured, user

TALKS = 6
MOST_GROWTH = 1.1
"""Of the memory of the process, from the first tenth of the updates to the last."""


async def update_under_load(service, updates):
    """Promote version after version while conversations of three calls go on, one after the other. Return the versions
    of each conversation, how requests ended, and the MiB of the process at each update."""
    versions, statuses, memory, over = defaultdict(list), Counter(), [], asyncio.Event()

    async def talk(client, number):
        count = 0
        while not over.is_set():
            count += 1
            headers = {"X-ASTune-Conversation": f"{number}-{count}"}
            messages = []
            for _ in range(3):
                messages.append(user("Hi"))
                body = {"messages": messages, "max_tokens": 4}
                said = await client.post("/v1/chat/completions", json=body, headers=headers)
                statuses[said.status_code] += 1
                versions[said.headers["x-astune-conversation-id"]].append(int(said.headers["x-astune-version"]))
                messages.append(said.json()["choices"][0]["message"])

    async with Client(service) as client:
        talks = [asyncio.create_task(talk(client, number)) for number in range(TALKS)]
        for number in range(1, updates + 1):
            with service.database.writing() as connection:
                add(connection, ModelVersion(number, parent=number - 1))
                promote(connection, number, role="train", why="made", now=1.0)
            answered = sum(statuses.values())
            await service.poll()
            while sum(statuses.values()) < answered + TALKS // 2:
                await asyncio.sleep(0)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        over.set()
        await asyncio.gather(*talks)
    return versions, statuses, memory


def check(versions, statuses, updates):
    assert set(statuses) == {200}
    assert [seen for seen in versions.values() if len(set(seen)) > 1] == []
    assert len({seen[0] for seen in versions.values()}) > updates / 4


@pytest.mark.fault(
    "Online training",
    "version after version becomes champion while conversations go on",
    "no request fails, no conversation meets two versions, and what nobody needs leaves memory",
)
async def test_updates_under_load_fail_nobody_and_a_conversation_meets_one_version(chat_format, tmp_path):
    policies = []

    def load(version):
        policy = ScriptedPolicy(lambda prompt: "4", chat_format, policy_version=version.number)
        policies.append(weakref.ref(policy))
        assert sum(each() is not None for each in policies) <= 3, "most_versions"
        return policy

    model = Model("scripted", chat_format, load, ModelVersion(0, sha256="5e1f"))
    service = OnlineService(configured(f"sqlite:///{tmp_path}/online.db"), model)
    versions, statuses, _ = await update_under_load(service, 60)
    service.close()
    check(versions, statuses, 60)


@pytest.mark.release
async def test_500_updates_of_a_model_under_load_leave_memory_as_it_was(tmp_path):
    # Few conversations are kept, so that as many are in memory after a tenth of the updates as at the end.
    config = configured(
        f"sqlite:///{tmp_path}/online.db",
        max_conversations=100,
        online={"folder": str(tmp_path)},
        rollout={"max_concurrent": 8},
    )
    service = OnlineService(config, local_model(config))
    versions, statuses, memory = await update_under_load(service, 500)
    service.close()
    print(f"{sum(statuses.values())} requests in {len(versions)} conversations; MiB: {memory[::50] + memory[-1:]}")
    check(versions, statuses, 500)
    assert memory[-1] < memory[50] * MOST_GROWTH
