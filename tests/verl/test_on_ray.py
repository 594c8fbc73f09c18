"""verl's training workers (FSDP2 on gloo) and servers on a real Ray. All tests share one engine and go on from each
other's weights; the last ones kill its processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from safetensors.torch import load_file

from astune.backbone.local.engine import load_engine as load_local
from astune.backbone.local.engine import load_policy
from astune.backbone.verl.servers.policy import VerlPolicy
from astune.backbone.verl.servers.publish import PublishedWeights
from astune.backbone.verl.servers.whole_rows import whole_row
from astune.errors import ContextOverflow, TrainingError, WorkflowError
from astune.monitor import RunDir, read_episodes, read_metrics
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import Generation, Policy, RunReport, Sample, Sampling
from tests.verl.on_ray import demo, run_on, started

PROMPTS = [[5, 9, 20, 31], [7, 7, 7, 8, 40], list(range(30, 90))]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with started() as engine:
        yield engine


@pytest.fixture(scope="module")
def finished(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReport, RunReport]:
    """A run of three steps on the engine, and the same one on `local`."""
    folder = tmp_path_factory.mktemp("runs")
    there = run_on(engine, f"astune.runs_dir={folder}")
    here = run_training(demo(f"astune.runs_dir={folder}", backbone="local"), load_local)
    return there, here


def weights_of(engine: Engine) -> PublishedWeights:
    assert isinstance(engine.policy, VerlPolicy)
    return engine.policy._weights


def rows(*lengths: int) -> list[Sample]:
    return [whole_row([(7 * number + place) % 300 + 5 for place in range(n)]) for number, n in enumerate(lengths)]


def learned(engine: Engine) -> None:
    """One update that moves all weights, and weights that are published."""

    async def once() -> None:
        await engine.learner.update([replace(row, advantages=(1.0,)) for row in rows(20, 9)], 1e-3)
        await engine.learner.publish()

    asyncio.run(once())


# --- the same as on `local` --------------------------------------------------------------------------------------


def test_a_run_is_that_of_the_local_backbone(finished: tuple[RunReport, RunReport]) -> None:
    there, here = finished
    assert (there.error, here.error) == (None, None)
    assert (there.status, there.steps) == (here.status, here.steps) == ("completed", 3)
    played = [
        {
            record.episode.episode_id: [tuple(turn.output_ids) for turn in record.episode.turns]
            for record in read_episodes(report.run_dir / "episodes" / "train.jsonl")
        }
        for report in finished
    ]
    assert len(played[0]) == 3 * 4 * 8 and played[0] == played[1]
    figures = [read_metrics(report.run_dir / "metrics.jsonl") for report in finished]
    for row, other in zip(*figures, strict=True):
        assert row["policy_version"] == other["policy_version"] and row["policy_age/max"] == 0
        for name in ("reward/mean", "loss", "grad_norm", "clip_fraction", "learning_rate", "tokens/trained"):
            assert row[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    assert all(row["servers/logprob_difference"] < 1e-4 for row in figures[0])


def test_a_checkpoint_has_the_weights_of_the_local_backbone(finished: tuple[RunReport, RunReport]) -> None:
    there, here = (
        load_file(report.run_dir / "checkpoints" / "step_000003" / "model.safetensors") for report in finished
    )
    assert there.keys() == here.keys()
    assert max(float((there[name] - here[name]).abs().max()) for name in there) < 1e-4


def test_servers_answer_as_the_local_sampler_does(engine: Engine, tmp_path: Path) -> None:
    engine.learner.save(tmp_path)
    model = demo(backbone="local").config.astune.model.model_copy(update={"path": str(tmp_path)})
    _, sampler, _ = load_policy(demo(backbone="local").config.astune.model_copy(update={"model": model}))
    version = asyncio.run(engine.learner.publish())
    wanted = [
        Sampling(24, seed=1),
        Sampling(24, temperature=0.0),
        Sampling(24, temperature=0.7, top_p=0.9, top_k=20, seed=3),
        Sampling(24, stop=("e",), seed=4),
        Sampling(24, stop_token_ids=engine.chat_format.stop_token_ids, seed=5),
    ]

    async def ask(policy: Policy) -> list[Generation]:
        calls = [policy.generate(prompt, sampling) for prompt in PROMPTS for sampling in wanted]
        return list(await asyncio.gather(*calls))

    for theirs, ours in zip(asyncio.run(ask(engine.policy)), asyncio.run(ask(sampler)), strict=True):
        assert theirs.output_ids == ours.output_ids and theirs.finish_reason == ours.finish_reason
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-4)
        assert theirs.policy_version == version


def test_what_a_server_would_cut_or_refuse_is_told_as_by_the_local_sampler(engine: Engine) -> None:
    longest = engine.policy.context_length
    with pytest.raises(ContextOverflow, match=f"exceed the context length of {longest}"):
        asyncio.run(engine.policy.generate([5] * (longest - 3), Sampling(4)))
    with pytest.raises(WorkflowError, match="token id 1000000"):
        asyncio.run(engine.policy.generate([5, 1000000], Sampling(4)))


def test_the_comparison_is_of_the_same_tokens(engine: Engine) -> None:
    """What servers say of a text is what the trainer says of it: else the comparison of weights would mean nothing."""
    asyncio.run(engine.learner.publish())
    wanted = rows(30, 2, 200)
    replica = weights_of(engine).replicas[1]
    from astune.backbone.verl.servers import publish

    outputs = ray.get([publish._score(replica, row) for row in wanted])
    for output, expected in zip(outputs, asyncio.run(engine.learner.logprobs(wanted)), strict=True):
        told = [entry[0] for entry in output.extra_fields["prompt_logprobs"]]
        assert told[:-1] == pytest.approx(list(expected), abs=1e-4)


# --- weights that do not arrive ----------------------------------------------------------------------------------


@pytest.mark.fault(
    "Runs and resuming",
    "a server of verl keeps its old weights, and says so or says that they are new",
    "the hand-over is refused, with the server and how far it is off; the run ends",
)
@pytest.mark.parametrize("lies", [False, True], ids=["it says so", "it says that they are new"])
def test_a_server_that_did_not_get_the_weights_is_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    learned(engine)
    weights = weights_of(engine)
    update, server = weights._manager.update_weights, weights.replicas[1].servers[0]
    old = ray.get(server.__ray_call__.remote(lambda self: (dict(self._model.state_dict()), self._version)))

    def but_one(global_steps: int) -> None:
        update(global_steps=global_steps)
        ray.get(server.load_weights.remote(old[0], global_steps if lies else old[1]))

    with monkeypatch.context() as patch:
        patch.setattr(weights._manager, "update_weights", but_one)
        with pytest.raises(TrainingError, match=r"server 1 (does not have the trainer's weights|was to get)"):
            learned(engine)
    learned(engine)  # and the next time all is well


# --- processes that die: nothing goes on after these -------------------------------------------------------------


def kill(actor: object) -> None:
    """As the kernel kills a process that needs too much memory."""
    os.kill(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)  # type: ignore[attr-defined]


@pytest.mark.fault(
    "Runs and resuming",
    "a server of verl is killed while episodes wait for it",
    "the run names it and ends at once with 1; the steps done are saved",
)
def test_a_server_that_dies_ends_the_run_with_its_steps_saved(
    engine: Engine, finished: tuple[RunReport, RunReport], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.learner.load(finished[0].run_dir / "checkpoints" / "step_000003")

    class Killing(VerlPolicy):
        """Kills a server in the second step."""

        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
            if engine.learner.changes > before and not killed:
                killed.append(True)
                kill(self._weights.replicas[0].servers[0])
            return await super().generate(prompt_ids, sampling)

    killed: list[bool] = []
    before = engine.learner.changes
    assert isinstance(engine.policy, VerlPolicy)
    policy = Killing.__new__(Killing)
    vars(policy).update(vars(engine.policy))
    report = run_on(replace(engine, policy=policy), f"astune.runs_dir={tmp_path}", "astune.trainer.save_every=0")
    assert (report.status, report.steps, report.error) == ("failed", 1, None)
    assert "stopped: server 0 died" in " ".join(capfd.readouterr().out.split())
    assert RunDir(report.run_dir).latest_checkpoint() == RunDir(report.run_dir).checkpoint_path(1)


@pytest.mark.fault(
    "Runs and resuming",
    "a training worker of verl is killed",
    "the update says which one and why, not that the others wait for it",
)
def test_a_training_worker_that_dies_is_named(engine: Engine) -> None:
    workers = engine.learner._workers._group.workers  # type: ignore[attr-defined]
    kill(workers[1])
    with pytest.raises(TrainingError, match="training worker 1 died"):
        asyncio.run(engine.learner.update([replace(row, advantages=(1.0,)) for row in rows(20, 9)], 1e-2))
