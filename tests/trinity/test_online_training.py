"""Versions of `astune online` made by the real trainer of Trinity, on Ray and a CPU."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("trinity")
pytest.importorskip("tinker")
pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import psutil
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from trinity.common.experience import Experience

from astune.backbone.local.engine import load_engine, load_policy
from astune.backbone.trinity.conversion.values import TRINITY_LOSS
from astune.backbone.trinity.online.engine import TrinityEngines
from astune.backbone.trinity.online.learner import TrinityLearner, rows_of
from astune.backbone.trinity.online.session import Beginning, Trained
from astune.config.load import load_config
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.errors import RunFolderError
from astune.online.service.models import load_version
from astune.online.store import versions
from astune.online.store.commits import CommitRow
from astune.online.store.feedback.states import FeedbackPart
from astune.online.store.trace import AnswerTrace, VersionTrace, trace
from astune.online.store.versions import ModelVersion
from astune.store import tables
from astune.store.database import open_database
from astune.support.resources import tiny_model_dir
from astune.training.schedule import learning_rate
from astune.types import Policy, Sample, Sampling, Span, Timeline
from tests.garbage import collect_all
from tests.launched import actor_of
from tests.online.training.world import World
from tests.trinity.test_equivalence import VOCABULARY, trinity_loss

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Trinity's validator, which runs in this process, leaves a connection to the tinker server open."""

CONF = """\
astune:
  model: {{path: tiny, device: cpu}}
  trainer: {{learning_rate: 1.0e-3, warmup_steps: 2, updates_per_step: 1}}
  monitor: {{trackers: [], check_invariants: true}}
  online:
    folder: {folder}
    commit: {{min_episodes: 1, group_wait_seconds: 0, every_seconds: null, max_kl: null, weight_thumbs: 0.5}}
"""
PROMPT = (40, 41, 42)
RATE = 1e-3


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """The engines set the level of Trinity's logs in this process. Clusters of later modules would inherit it,
    and the connection would fail one of their tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRINITY_LOG_LEVEL", "CRITICAL")
        yield
    collect_all()


@st.composite
def imitated(draw: st.DrawFn) -> Sample:
    """A row of two spans, the second of which is trained."""
    ids = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=4, max_size=8))
    cut = draw(st.integers(2, len(ids) - 1))
    spans = (
        Span(0, 1, cut, 0, 1.0, True, [0.0] * (cut - 1)),
        Span(1, cut, len(ids), 0, 1.0, True, [0.0] * (len(ids) - cut)),
    )
    advantage = draw(st.floats(-2.0, 2.0))
    return Sample(
        Timeline("agent", ids, spans), (0.0, advantage), (0.0, 0.25), "t", draw(st.uuids()).hex, imitated=True
    )


@given(st.lists(imitated(), min_size=1, max_size=3), st.sampled_from(sorted(TRINITY_LOSS)), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_what_is_imitated_has_the_gradient_of_its_likelihood_under_every_loss(
    samples: list[Sample], loss: str, seed: int
) -> None:
    """A table of logits by the last token stands in for the model."""
    config = AstuneConfig(algorithm=AlgorithmConfig.model_validate({"loss": loss}))
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ours, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()
    total, known = ours.sum() * 0.0, []
    for sample in samples:
        ids, span = list(sample.timeline.token_ids), sample.timeline.spans[1]
        logprob = torch.log_softmax(ours, -1)[ids[span.start - 1 : -1], ids[span.start :]]
        known.append(logprob.tolist())
        total = total - (sample.advantages[1] * sample.weights[1] * logprob).sum()
    total.backward()
    rows = rows_of(samples, known, 1, config)
    (sum(trinity_loss(row, theirs, config.algorithm) for row in rows) / len(rows)).backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


class RecordedSession:
    """Trains nothing, and says what it was begun with: a session of Trinity without Trinity."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun = folder, list[tuple[int | None, float]]()

    def begin(self, beginning: Beginning | None, share: float) -> RecordedSession:
        self.begun.append((None if beginning is None else beginning.updates, share))
        return self

    async def ready(self) -> None:
        """It always is."""

    async def train(self, rows: list[Experience]) -> Trained:
        return Trained({"loss": 1.0, "trinity/rows": 1.0}, self.folder)


def test_trinity_is_begun_anew_from_the_last_update_where_the_learning_rate_is_not_its_schedules() -> None:
    config = AstuneConfig.model_validate({"model": {"path": "tiny", "device": "cpu"}, "trainer": {"warmup_steps": 4}})
    recorded = RecordedSession(tiny_model_dir())
    loaded, sampler, _ = load_policy(config)
    learner = TrinityLearner(loaded, sampler, config, recorded.begin)  # type: ignore[arg-type]
    line = Timeline("agent", (40, 41), (Span(0, 1, 2, 0, 1.0, True, (-1.0,)),))

    async def update(share: float) -> None:
        rate = share * learning_rate(config.trainer, learner.updates, learner.updates + 1)
        done = await learner.update([Sample(line, (1.0,), (1.0,), "t", "e")], rate)
        assert done.metrics == {"loss": 1.0, "learning_rate": rate} and not done.skipped

    async def updates() -> None:
        for share in (1.0, 1.0, 0.25, 0.25, 0.5, 1.0):
            await update(share)

    asyncio.run(updates())
    assert recorded.begun == [(None, 1.0), (2, 0.25), (4, 0.5), (5, 1.0)]
    assert learner.updates == learner.changes == 6


class Service:
    """A store that users have rated, and one of its own with the same answers for `local`."""

    def __init__(self, folder: Path, engines: TrinityEngines, world: World, local: World) -> None:
        self.folder, self.engines, self.world, self.local = folder, engines, world, local
        self.trainer, self.told = world.trainer(), 0

    def say(self, policy: Policy) -> list[str]:
        """Answers of the model, rated in every way that there is."""
        said = [asyncio.run(policy.generate(PROMPT, Sampling(max_tokens=3, seed=self.told + n))) for n in range(8)]
        for world in (self.world, self.local):
            ids = [
                world.answer(
                    f"{self.told + number}",
                    prompt=PROMPT,
                    output=each.output_ids,
                    logprobs=each.logprobs,
                    version=each.policy_version,
                )
                for number, each in enumerate(said)
            ]
            for number, msg_id in enumerate(ids[:4]):
                world.say(float(number % 2), about=[msg_id], author=msg_id)
            world.say(FeedbackPart("correction", correction="It is 5."), about=[ids[4]])
            world.say(FeedbackPart("thumb", value=1.0), about=[ids[5]])
            world.say(FeedbackPart("preference"), better=ids[6], worse=ids[7])
        self.told += len(said)
        return ids

    def weights(self, world: World, number: int) -> dict[str, torch.Tensor]:
        if number == 0:
            return load_file(tiny_model_dir() / "model.safetensors")
        return load_file(world.folder / "versions" / str(version(world, number).folder) / "model.safetensors")


def version(world: World, number: int) -> ModelVersion:
    with world.database.reading() as connection:
        return next(each for each in versions.every(connection) if each.number == number)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("online")
    (folder / "service.yaml").write_text(CONF.format(folder=folder / "service"))
    loaded = load_config(folder / "service.yaml", backbone="trinity", for_run=False)
    ours = loaded.config.model_copy(update={"astune": loaded.config.astune.model_copy(update={"backbone": "local"})})
    stores = [open_database(f"sqlite:///{folder}/{name}.db") for name in ("trinity", "local")]
    with TrinityEngines(loaded, folder / "service") as engines:
        yield Service(
            folder,
            engines,
            World(stores[0], folder / "service", loaded.config, engines.load_engine),
            World(stores[1], folder / "local", ours, load_engine),
        )
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def first(service: Service) -> CommitRow:
    """A commit by Trinity, and the same one by `local`."""
    service.say(load_engine(service.local.config.astune).policy)
    assert service.local.commit().state == "made"
    return service.world.commit(service.trainer)


def moved(service: Service, world: World, number: int) -> torch.Tensor:
    before, after = service.weights(world, number - 1), service.weights(world, number)
    return torch.cat([(after[name] - before[name]).flatten() for name in after])


@pytest.mark.slow
def test_a_commit_of_trinity_moves_the_weights_as_one_of_local(service: Service, first: CommitRow) -> None:
    """As in `test_run`: compared are the weights whose gradient is well above both epsilons of AdamW."""
    assert first.state == "made" and first.version == 1 and first.figures is not None, first
    methods = {row["method"] for row in service.world.rows(tables.samples)}
    assert methods == {"policy", "sft", "kto", "dpo"}
    ours, trinitys, rate = moved(service, service.local, 1), moved(service, service.world, 1), RATE / 2
    assert first.figures["learning_rate"] == rate, "half of it, as two updates warm up"
    clear = ours.abs() > 0.99 * rate
    assert float(clear.float().mean()) > 0.2
    assert float((ours - trinitys)[clear].abs().max()) < 0.02 * rate
    assert first.figures["kl/from_version_before"] > 0


@pytest.mark.slow
def test_the_version_can_be_served_and_traced(service: Service, first: CommitRow) -> None:
    sampler = load_version(service.world.config, version(service.world, 1))[0]
    served = dict(sampler.model.state_dict())
    assert all(torch.equal(served[name], weight) for name, weight in service.weights(service.world, 1).items())
    with service.world.database.reading() as connection:
        answer, made = trace(connection, "0"), trace(connection, "v1")
    assert isinstance(answer, AnswerTrace) and isinstance(made, VersionTrace)
    assert made.config is not None and made.config["backbone"] == "trinity" and len(made.rewards) == 7


@pytest.mark.slow
@pytest.mark.fault(
    "Online training",
    "Trinity's trainer is killed in a commit",
    "the commit fails and says so, nothing is changed, and the next one learns from the same answers",
)
def test_a_commit_in_which_trinity_dies_leaves_all_as_it_was(service: Service, first: CommitRow) -> None:
    world = service.world
    service.say(load_version(world.config, version(world, 1))[0])

    def state() -> list[object]:
        changing = (tables.versions, tables.samples, tables.episodes, tables.feedback)
        return [world.rows(table) for table in changing]

    before = state()
    actor_of(psutil.Process(), "ray::Trainer").kill()
    row = world.commit(service.trainer)
    assert row.state == "failed" and row.error is not None and "Trainer" in row.error, row
    assert state() == before
    assert sorted(path.name for path in (world.folder / "versions").iterdir()) == [version(world, 1).folder]
    again = world.commit(service.trainer)
    assert again.state == "made" and again.version == 2 and again.figures is not None
    assert again.figures["learning_rate"] == RATE, "it is the second update: Trinity went on from the version"
    assert service.local.commit().state == "made"
    ours, trinitys = moved(service, service.local, 2), moved(service, world, 2)
    similar = torch.nn.functional.cosine_similarity(ours, trinitys, dim=0)
    assert float(similar) > 0.9 and math.isclose(float(ours.norm()), float(trinitys.norm()), rel_tol=0.1)


def test_a_version_of_another_backbone_is_not_gone_on_from(service: Service, tmp_path: Path) -> None:
    engine = service.engines.load_engine(service.world.config.astune)
    load_engine(service.local.config.astune).learner.save(tmp_path)
    with pytest.raises(RunFolderError, match="it is damaged, or another backbone's"):
        engine.learner.load(tmp_path)
