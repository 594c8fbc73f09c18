"""New versions take over without a request failing."""

import asyncio
import gc
import math
import threading
import weakref

import pytest
import torch

from astune.backbone.local.engine import load_engine, load_policy
from astune.backbone.local.model.model import save_model
from astune.config.schema import Config
from astune.errors import ModelError, RunFolderError
from astune.online.service import models
from astune.online.service.models import LEAVING, local_model
from astune.online.service.versions import RETRY_SECONDS, NoRoom, ServedVersions
from astune.online.store.aliases import promote
from astune.online.store.assignments import LastAnswer
from astune.online.store.versions import ModelVersion, add, register
from astune.online.training.checkpoint import seal
from astune.online.training.log import status_of
from astune.online.training.probes import make_probes
from astune.store import open_database, tables
from astune.support.machine_memory import MachineMemory
from astune.testing import ScriptedPolicy
from astune.types import Sampling
from tests.online.service.conftest import user


def made(database, number, **more):
    """Version `number`, made from the one before, is champion."""
    with database.writing() as connection:
        add(connection, ModelVersion(number, parent=number - 1, **more))
        promote(connection, number, role="train", why="made", now=1.0)


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
        new = await client.chat([user("Hi")], headers={"X-ASTune-Conversation": "d"})
        go_on.set()
        old = await under_way
        looked = [(await client.get(f"/v1/astune/requests/{each['id']}")).json() for each in (old, new)]
        assert [each["version"] for each in looked] == [0, 1]
        with client.service.database.reading() as connection:
            rows = connection.execute(tables.exposures.select().order_by(tables.exposures.c.version)).all()
        assert [(row.conversation_id, row.version) for row in rows] == [
            (old["conversation"], 0),
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

    versions = ServedVersions(database, load, clock=lambda: now[0])
    versions.open()
    made(database, 1)
    assert [await versions.poll() for _ in range(3)] == [False] * 3
    assert (versions.serving, versions.failures, tried) == (0, 1, [0, 1])
    now[0] += RETRY_SECONDS
    assert await versions.poll()
    assert versions.serving == 1
    database.close()


@pytest.mark.fault(
    "Online training",
    "the checkpoints of the newest versions are damaged when the service starts",
    "the newest whole one answers; log, audit, status, metrics and `/health` say which is not served",
)
async def test_the_newest_version_that_is_whole_answers_and_the_damaged_one_is_told_of(
    store, chat_format, make_service, caplog
):
    damaged, now = {3, 2}, [0.0]
    database = open_database(store)
    for number in (1, 2, 3):
        made(database, number)

    def load(version):
        if version.number in damaged:
            raise RunFolderError(f"the checkpoint of {version.number} is broken")
        return ScriptedPolicy(["4"], chat_format, policy_version=version.number)

    versions = ServedVersions(database, load, clock=lambda: now[0])
    versions.open()
    assert (versions.serving, versions.not_served, versions.failures) == (1, 3, 2)
    assert "version 3 is not served, version 1 answers: the checkpoint of 3 is broken" in caplog.text
    assert status_of(database, 0.0).not_served == "v1 answers: the checkpoint of 3 is broken"
    damaged.remove(2)
    now[0] += RETRY_SECONDS
    assert await versions.poll() and (versions.serving, versions.not_served) == (2, 3)
    assert not await versions.poll(), "it is tried again after a while"
    damaged.remove(3)
    now[0] += RETRY_SECONDS
    assert await versions.poll() and (versions.serving, versions.not_served) == (3, None)
    assert status_of(database, 0.0).not_served is None
    database.close()


async def test_a_service_says_that_its_newest_version_is_not_served(store, make_service):
    async with make_service(store) as client:
        versions = client.service.versions
        load = versions._load

        def broken(version):
            raise RunFolderError("it is broken")

        versions._load = broken
        made(client.service.database, 1)
        assert not await versions.poll()
        assert (await client.get("/health")).json()["not_served"] == 1
        assert (await client.get("/v1/astune/status")).json()["not_served"] == 1
        assert "astune_version_not_served 1.0" in (await client.get("/metrics")).text
        versions._load, versions._clock = load, lambda: math.inf
        assert await versions.poll()
        assert "not_served" not in (await client.get("/health")).json()


async def test_what_is_wrong_with_more_than_a_checkpoint_keeps_a_service_from_starting(store, chat_format):
    def load(version):
        raise ModelError("there is no memory")

    database = open_database(store)
    made(database, 1)
    versions = ServedVersions(database, load)
    with pytest.raises(ModelError):
        versions.open()
    database.close()


async def test_version_0_is_written_down_once(store, make_service):
    for _ in range(2):
        async with make_service(store) as client:
            (row,) = (await client.get("/v1/astune/versions")).json()["versions"]
            assert (row["number"], row["sha256"]) == (0, "5e1f")
            with client.service.database.writing() as connection:
                register(connection, ModelVersion(0, sha256="another"))


async def test_a_version_that_answers_no_more_leaves_memory_without_the_collector(tmp_path):
    config = Config.model_validate({"astune": {"online": {"folder": str(tmp_path)}, "rollout": {"max_concurrent": 2}}})
    sampler = local_model(config).load(ModelVersion(0))
    await sampler.generate([5, 6, 7], Sampling(2))
    gc.collect()
    gc.disable()
    try:
        left = [weakref.ref(each) for each in (sampler, sampler.model, *sampler.model.modules())]
        del sampler
        for thread in threading.enumerate():
            if thread.name == LEAVING:
                thread.join()
        assert [ref() for ref in left if ref() is not None] == []
    finally:
        gc.enable()


@pytest.mark.fault(
    "Online training",
    "a version computes something else where it is served than where it was trained",
    "it is not served, and the audit says why",
)
async def test_a_version_must_give_the_probes_of_its_trainer(tmp_path):
    config = Config.model_validate({"astune": {"online": {"folder": str(tmp_path)}, "rollout": {"max_concurrent": 2}}})
    engine = load_engine(config.astune)
    probes = await make_probes(engine.learner, engine.chat_format)
    assert len(probes["rows"]) == 8
    model = local_model(config)
    model.load(ModelVersion(0, probes=probes))
    with torch.no_grad():
        for parameter in engine.learner._loaded.model.parameters():
            parameter.mul_(0.99)
    of_another = await make_probes(engine.learner, engine.chat_format)
    with pytest.raises(RunFolderError, match="does not compute here what it did in training"):
        model.load(ModelVersion(0, probes=of_another))
    probes["rows"][3]["logprobs"][1] += 2e-4
    with pytest.raises(RunFolderError, match=r"off by 0\.0002, more than 0\.0001"):
        model.load(ModelVersion(0, probes=probes))


async def test_a_version_that_does_not_fit_into_memory_is_not_loaded(tmp_path, monkeypatch):
    config = Config.model_validate({"astune": {"online": {"folder": str(tmp_path)}, "rollout": {"max_concurrent": 2}}})
    model = local_model(config)
    model.load(ModelVersion(0))
    monkeypatch.setattr(models, "find_memory", lambda device: MachineMemory("machine", 2**40, 2**10, False))
    with pytest.raises(NoRoom, match=r"version 1 needs .* beside those that answer"):
        model.load(ModelVersion(1))


async def test_a_version_that_conversations_keep_leaves_for_one_that_is_needed(store, chat_format):
    """At most two in memory, or as many as fit; a request under way is waited for."""
    database, fits = open_database(store), [9]

    def load(version):
        if len(versions.held) >= fits[0]:
            raise NoRoom("there is no room")
        return ScriptedPolicy(["4"], chat_format, policy_version=version.number)

    versions = ServedVersions(database, load, most=2)
    versions.open()
    made(database, 1)
    assert await versions.poll()
    async with versions.answering("conversation:d", None, 1.0) as answering:
        assert answering.decision.version == 1
    async with versions.answering("conversation:c", LastAnswer(0, 1.0), 1.0) as answering:
        assert (answering.decision.version, versions.held) == (0, [0, 1])
        made(database, 2)
        polling = asyncio.create_task(versions.poll())
        while 0 in versions.held:
            await asyncio.sleep(0)
        assert versions.serving == 1 and not polling.done()
    assert await polling and versions.held == [1, 2]
    async with versions.answering("conversation:c", LastAnswer(0, 1.0), 1.0) as answering:
        assert (answering.decision.version, versions.held) == (0, [0, 2]), "it is loaded again"
    fits[0] = 2
    made(database, 3)
    versions._most = 3
    assert await versions.poll() and versions.held == [3], "what nobody has been answered by leaves at once"
    database.close()


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
