"""Runs that train adapters, killed at random moments, end as one that was never stopped: bit for bit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.adapter_sampler import AdapterSampler
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, LoraConfig, ModelConfig, TrainerConfig
from astune.monitor import RunDir
from astune.monitor.episodes import EpisodeLog
from astune.monitor.metrics import MetricsLog
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_adapters import samples_of
from tests.backbone.local.test_backbone import run_job, timeless, write_job
from tests.training.killed import Killed

pytest.importorskip("peft")
KILLS = 5
ADAPTER = "adapter_model.safetensors"
STEPS = 4


def killing(patch: pytest.MonkeyPatch, places: list[tuple[object, str]]) -> Callable[[int], None]:
    """Raise Killed at the n-th time that the run comes by one of `places`, half the time behind it. Returns how n is
    set; 0 is never."""
    left = 0

    def by(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def passing(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                if random.random() < 0.5:
                    original(*arguments, **options)
                raise Killed(name)
            return original(*arguments, **options)

        patch.setattr(owner, name, passing)

    for owner, name in places:
        by(owner, name)

    def set_to(number: int) -> None:
        nonlocal left
        left = number

    return set_to


def until_done(run: Callable[[], object], set_to: Callable[[int], None], most: int) -> int:
    """Run again and again, each time killed; `KILLS` kills in all, or fewer if it gets through before."""
    kills = 0
    while kills < KILLS:
        set_to(random.randint(1, most))
        try:
            run()
        except Killed:
            kills += 1
        else:
            break
    set_to(0)
    run()
    return kills


def equal_states(first: Path, second: Path) -> bool:
    """Whether two checkpoints have the same adapter and the same state of the optimizer, bit for bit."""
    one, other = load_file(first / ADAPTER), load_file(second / ADAPTER)
    states = [torch.load(folder / "trainer_state.pt", weights_only=True) for folder in (first, second)]
    moments = [[value for each in state["optimizer"]["state"].values() for value in each.values()] for state in states]
    return (
        one.keys() == other.keys()
        and all(torch.equal(one[name], other[name]) for name in one)
        and len(moments[0]) == len(moments[1])
        and all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
        and all(states[0][name] == states[1][name] for name in ("updates", "policy_version"))
    )


@pytest.mark.slow
@pytest.mark.fault(
    "Runs and resuming",
    "a run that trains adapters, one or two, is killed at random moments, again and again",
    "adapters, optimizers and figures are bit for bit those of a run that was never stopped",
)
def test_a_killed_run_with_an_adapter_ends_as_if_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(18)
    small = ["rollout.max_tokens=4", "rollout.num_repeat=2", "trainer.save_every=1", "trainer.learning_rate=0.01"]
    small += [f"trainer.total_steps={STEPS}", "evaluation.before=false", "evaluation.after=false"]
    small += ["evaluation.every=0"]
    options = [f"astune.{each}" for each in [*small, "trainer.keep_checkpoints=9", "model.lora.rank=4"]]
    conf = write_job(tmp_path, tasks=4)
    straight = run_job(conf, *options)
    set_to = killing(
        monkeypatch,
        [(LocalLearner, "_backward"), (LocalLearner, "_step"), (LocalLearner, "save"), (RunDir, "prune_checkpoints"),
         (MetricsLog, "log"), (EpisodeLog, "write"), (EpisodeLog, "sync"), (torch, "save")],
    )  # fmt: skip
    runs = []

    def go() -> None:
        there = any(RunDir(folder).latest_checkpoint() for folder in (tmp_path / "runs" / "test").glob("killed*"))
        runs.append(run_job(conf, *options, "astune.experiment_name=killed", resume=there))

    assert until_done(go, set_to, most=9) >= 4
    found = RunDir(runs[-1].run_dir)
    assert [row for row in timeless(runs[-1]) if row["step"]] == [row for row in timeless(straight) if row["step"]]
    assert [path.name for path in found.checkpoints()] == [f"step_{step:06d}" for step in range(1, STEPS + 1)]
    last = torch.load(found.checkpoints()[-1] / "trainer_state.pt", weights_only=True)
    assert len(last["optimizer"]["state"]) == 56  # something was learned
    for path in found.checkpoints():
        assert equal_states(path, straight.run_dir / "checkpoints" / path.name)


@pytest.mark.slow
def test_two_adapters_that_are_killed_end_as_if_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(19)
    make_model().save_pretrained(tmp_path / "model")
    config = ModelConfig(path=str(tmp_path / "model"), device="cpu", lora=LoraConfig(rank=4))

    async def train(folder: Path) -> None:
        torch.manual_seed(0)
        run, loaded = RunDir(folder), load_model(config, ("a", "b"))
        sampler = Sampler(loaded.model, slots=6, context_length=256, adapters=loaded.adapters)
        policies = {name: AdapterSampler(sampler, name) for name in "ab"}
        rates = {"a": TrainerConfig(learning_rate=0.05), "b": TrainerConfig(learning_rate=0.02, weight_decay=0.1)}
        learners = {
            name: LocalLearner(loaded.of(name), policies[name], AlgorithmConfig(), rates[name]) for name in "ab"
        }
        latest = run.latest_checkpoint()
        for name in "ab" if latest else "":
            assert latest is not None
            learners[name].load(latest / name)
        for step in range(int(latest.name[5:]) if latest else 0, STEPS):
            samples = dict(zip("ab", await asyncio.gather(*(samples_of(policies[name]) for name in "ab")), strict=True))
            for name in "ab":
                await learners[name].update(samples[name], rates[name].learning_rate)
            for name in "ab":
                await learners[name].publish()
            with run.save_checkpoint(step + 1) as checkpoint:
                for name in "ab":
                    (checkpoint / name).mkdir()
                    learners[name].save(checkpoint / name)

    asyncio.run(train(tmp_path / "straight"))
    places = [(LocalLearner, "_backward"), (LocalLearner, "_step"), (LocalLearner, "save"), (torch, "save")]
    set_to = killing(monkeypatch, [*places, (AdapterSampler, "publish")])
    killed = tmp_path / "killed"
    assert until_done(lambda: asyncio.run(train(killed)), set_to, most=9) >= 4
    for step in range(1, STEPS + 1):
        for name in "ab":
            last = f"checkpoints/step_{step:06d}/{name}"
            assert equal_states(killed / last, tmp_path / "straight" / last)
