"""From what users say to other weights, with a small model."""

import asyncio
import itertools
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from astune.backbone.local.engine import load_engine
from astune.online.store import versions
from astune.online.store.feedback.states import FeedbackPart
from astune.online.training.learning import SHARE, mean_kl
from astune.store import tables
from astune.store.database import Database, open_database
from astune.training.engine import Engine
from astune.types import Sample, Sampling, Span, Timeline
from tests.online.training.world import World, config_of
from tests.store.databases import database as database
from tests.store.databases import url as url

PROMPT = (1, 2, 3)
ANSWERS = 24


def probability(engine: Engine, token: int) -> float:
    line = Timeline("agent", (*PROMPT, token), (Span(0, 3, 4, 0, 1.0, True, (0.0,)),))
    return math.exp(asyncio.run(engine.learner.logprobs([Sample(line, (1.0,), (1.0,), "t", "e")]))[0][0])


def test_what_users_like_gets_likelier_from_commit_to_commit(database: Database, tmp_path: Path) -> None:
    config = config_of(astune={"trainer": {"learning_rate": 1e-4}}, max_kl=1.0)
    world = World(database, tmp_path, config, load_engine)
    serving, trainer = load_engine(config.astune), world.trainer()
    greedy = asyncio.run(serving.policy.generate(PROMPT, Sampling(max_tokens=1, temperature=0.0)))
    liked = greedy.output_ids[0]
    found = [probability(serving, liked)]
    for commit in range(3):
        for number in range(ANSWERS):
            said = asyncio.run(serving.policy.generate(PROMPT, Sampling(max_tokens=1, seed=ANSWERS * commit + number)))
            right = said.output_ids[0] == liked
            world.rate(
                float(right), prompt=PROMPT, output=said.output_ids, logprobs=said.logprobs, version=said.policy_version
            )
        row = world.commit(trainer)
        assert row.state == "made", row
        with database.reading() as connection:
            version = versions.newest(connection)
        serving.learner.load(tmp_path / "versions" / str(version.folder))
        assert serving.learner.policy_version == version.number == commit + 1
        found.append(probability(serving, liked))
    assert found == sorted(found) and found[-1] > found[0] + 0.1, found


def test_a_critic_learns_from_rewards_beside_corrections(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/store.db")
    algorithm = {"advantage": "gae", "loss_aggregation": "token_mean"}
    config = config_of(astune={"trainer": {"learning_rate": 1e-5}, "algorithm": algorithm})
    world = World(opened, tmp_path, config, load_engine)
    trainer = world.trainer()
    for version in (1, 2):
        world.rate(1.0, output=(40, 50), logprobs=(-3.0, -4.0))
        world.rate(0.0, output=(41, 50), logprobs=(-3.0, -4.0))
        world.say(FeedbackPart("correction", correction="It is 5."), about=[world.answer(f"wrong-{version}")])
        row = world.commit(trainer)
        assert row.state == "made" and row.version == version and row.figures is not None
        assert row.figures["critic/return_mean"] == pytest.approx(0.5, abs=0.1) and row.figures["turns/sft"] == 1.0
    assert sorted({each["method"] for each in world.rows(tables.samples)}) == ["policy", "sft"]
    opened.close()


def test_corrections_alone_make_a_version_that_says_them_more_likely(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/store.db")
    world = World(opened, tmp_path, config_of(astune={"trainer": {"learning_rate": 1e-4}}, max_kl=None), load_engine)
    trainer = world.trainer()
    losses = []
    for number in range(3):
        wrong = world.answer(f"wrong-{number}")
        world.say(FeedbackPart("correction", correction="It is 5."), about=[wrong])
        row = world.commit(trainer)
        assert row.state == "made" and row.figures is not None
        losses.append(row.figures["loss"])
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    opened.close()


def test_the_step_of_corrections_is_measured_on_the_answers_that_were_corrected(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/store.db")
    config = config_of(astune={"trainer": {"learning_rate": 1e-3}}, max_kl=None)
    world = World(opened, tmp_path, config, load_engine)
    world.say(FeedbackPart("correction", correction="It is 5."), about=[world.answer("wrong", output=(4, 5))])
    row = world.commit()
    line = Timeline("agent", (*PROMPT, 4, 5), (Span(0, 3, 5, 0, 1.0, True, (0.0, 0.0)),))
    scores = []
    for folder in (None, next((tmp_path / "versions").iterdir())):
        learner = load_engine(config.astune).learner
        if folder is not None:
            learner.load(folder)
        scores.append(asyncio.run(learner.logprobs([Sample(line, (1.0,), (1.0,), "t", "e")])))
    assert row.figures is not None
    assert row.figures["kl/from_version_before"] == pytest.approx(mean_kl(*scores), rel=1e-3)
    # What another model said has no tokens: then the correction's own tell how far it went, and not how much likelier.
    other = world.answer("other", prompt=(), output=(), version=-1, excluded="inexact")
    world.say(FeedbackPart("correction", correction="It is six, I think."), about=[other])
    row = world.commit()
    assert row.figures is not None and 0.0 < row.figures["kl/from_version_before"] < 10.0
    opened.close()


def test_by_a_rate_that_is_far_too_high_versions_still_come_within_the_bound(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/store.db")
    config = config_of(astune={"trainer": {"learning_rate": 0.03}}, max_kl=0.05)
    world = World(opened, tmp_path, config, load_engine)
    trainer, shares = world.trainer(), []
    for version in (1, 2, 3):
        for token in range(4):
            world.rate(float(token % 2), output=(40 + token, 50), logprobs=(-3.0, -4.0), version=version - 1)
        row = world.commit(trainer)
        assert (row.state, row.version) == ("made", version) and row.figures is not None, row
        assert 0 < row.figures["kl/from_version_before"] <= 0.05
        shares.append(row.figures[SHARE])
    assert shares[0] < 0.25, "far too high"
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(shares))
    undone = [version["figures"]["updates/undone"] for version in world.rows(tables.versions)]
    assert max(undone[1:]) < undone[0], "what went too far is remembered"
    opened.close()
