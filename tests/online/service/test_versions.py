"""New versions take over without a request failing."""

import asyncio

import pytest
import torch

from astune.backbone.local.engine import load_policy
from astune.backbone.local.model.model import save_model
from astune.config.schema import Config
from astune.errors import RunFolderError
from astune.online.service.models import local_model
from astune.online.service.versions import RETRY_SECONDS, ServedVersions
from astune.online.training.checkpoint import seal
from astune.store import open_database, tables
from astune.store.versions import ModelVersion, add, register
from astune.testing import ScriptedPolicy
from astune.types import Sampling
from tests.online.service.conftest import user


def made(database, number, **more):
    with database.writing() as connection:
        add(connection, ModelVersion(number, parent=number - 1, **more))


async def test_requests_that_begin_get_the_new_version_and_those_under_way_end_on_the_old(store, make_service):
    policies, go_on, begun = [], asyncio.Event(), asyncio.Event()
    async with make_service(store, policies=policies) as client:
        answer = policies[0].generate

        async def slow(prompt_ids, sampling):
            begun.set()
            await go_on.wait()
            return await answer(prompt_ids, sampling)

        policies[0].generate = slow
        under_way = asyncio.create_task(client.chat([user("Hi")], headers={"X-ASTune-Conversation": "c"}))
        await begun.wait()
        made(client.service.database, 1)
        assert await client.service.versions.poll() and not await client.service.versions.poll()
        new = await client.chat([user("Hi")], headers={"X-ASTune-Conversation": "c"})
        go_on.set()
        old = await under_way
        looked = [(await client.get(f"/v1/astune/requests/{each['id']}")).json() for each in (old, new)]
        assert [each["version"] for each in looked] == [0, 1]
        with client.service.database.reading() as connection:
            rows = connection.execute(tables.exposures.select().order_by(tables.exposures.c.version)).all()
        assert [(row.conversation_id, row.version) for row in rows] == [
            (new["conversation"], 0),
            (new["conversation"], 1),
        ]
        assert (await client.get("/v1/astune/versions")).json()["serving"] == 1


@pytest.mark.fault(
    "Online training", "a new version cannot be loaded", "the version before answers on; it is tried again"
)
async def test_a_version_that_cannot_be_loaded_changes_nothing_and_is_tried_again(store, chat_format):
    now, tried = [0.0], []
    database = open_database(store)

    def load(version):
        tried.append(version.number)
        if version.number == 1 and now[0] < RETRY_SECONDS:
            raise RunFolderError("the checkpoint is broken")
        return ScriptedPolicy(["4"], chat_format, policy_version=version.number)

    versions = ServedVersions(database, load, lambda: now[0])
    versions.open()
    made(database, 1)
    assert [await versions.poll() for _ in range(3)] == [False] * 3
    assert (versions.newest, versions.failures, tried) == (0, 1, [0, 1])
    now[0] += RETRY_SECONDS
    assert await versions.poll()
    assert versions.newest == 1
    database.close()


async def test_version_0_is_written_down_once(store, make_service):
    for _ in range(2):
        async with make_service(store) as client:
            (row,) = (await client.get("/v1/astune/versions")).json()["versions"]
            assert (row["number"], row["sha256"]) == (0, "5e1f")
            with client.service.database.writing() as connection:
                register(connection, ModelVersion(0, sha256="another"))


async def test_the_sampler_of_a_version_has_the_weights_of_its_checkpoint(tmp_path):
    config = Config.model_validate({"astune": {"online": {"folder": str(tmp_path)}, "rollout": {"max_concurrent": 2}}})
    loaded, _, chat_format = load_policy(config.astune)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(0.5)
    folder = tmp_path / "versions" / "v1"
    folder.mkdir(parents=True)
    save_model(loaded, folder)
    model = local_model(config)
    assert len(model.configured.sha256) == 64 and model.configured.config["model"]["path"] == "tiny"
    one = model.load(ModelVersion(1, folder="v1", sha256=seal(folder)))
    prompt, sampling = chat_format.encode("2 + 2"), Sampling(3, seed=1)
    said = [await policy.generate(prompt, sampling) for policy in (model.load(ModelVersion(0)), one)]
    assert [each.policy_version for each in said] == [0, 1]
    assert said[0].logprobs != said[1].logprobs
    for now, before in zip(one.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(now, before)
    with pytest.raises(RunFolderError):
        model.load(ModelVersion(2, folder="v1", sha256="0" * 64))
