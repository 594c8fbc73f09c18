"""The local backbone learns in a thread while it samples."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from astune.backbone.local.engine import load_engine
from astune.backbone.local.learning.learner import LocalLearner
from astune.config.load import load_config
from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics
from astune.support.resources import tiny_model_dir
from astune.training.start import run_training
from astune.types import Sample
from tests.backbone.local.test_backbone import SHORT, run_job, timeless, weights, write_job

BY_TURNS = ("astune.synchronizer.style=async", "astune.synchronizer.max_staleness=0")
AHEAD = ("astune.synchronizer.style=async", "astune.synchronizer.max_staleness=2")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.release),
        pytest.param(("astune.model.dtype=bfloat16",), marks=pytest.mark.release),
        ("astune.algorithm.advantage=gae",),
        ("astune.model.lora.rank=4", "astune.algorithm.kl_beta=0.1"),
    ],
)
def test_a_thread_that_nothing_goes_on_beside_learns_the_same_bit_for_bit(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    folders = [tmp_path / name for name in ("fixed", "async")]
    for folder in folders:
        folder.mkdir()
    fixed, turns = (
        run_job(write_job(folder), *SHORT, *options, *style)
        for folder, style in zip(folders, ((), BY_TURNS), strict=True)
    )
    spanning = "episodes/spanning_versions"
    assert timeless(fixed) == [{name: row[name] for name in row if name != spanning} for row in timeless(turns)]
    ours, theirs = weights(turns, 2), weights(fixed, 2)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_sampler_answers_with_its_own_weights_while_the_model_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every update waits until an answer of the next step has begun and ended meanwhile."""
    conf = write_job(tmp_path)
    answered, learning = threading.Semaphore(0), threading.Event()
    threads, waited = set[str](), []
    loaded = load_config(conf, [*SHORT, *AHEAD, "astune.trainer.total_steps=4", "astune.rollout.max_concurrent=6"])
    real = LocalLearner._update

    def update(self: LocalLearner, samples: Sequence[Sample], *rest: object) -> object:
        threads.add(threading.current_thread().name)
        if self.updates < 2:  # after the last step but two all may be played already
            learning.set()
            waited.append(answered.acquire(timeout=100))
            learning.clear()
        return real(self, samples, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalLearner, "_update", update)

    def load(config: object) -> object:
        engine = load_engine(config)  # type: ignore[arg-type]
        generate = engine.policy.generate

        async def watched(prompt_ids: Sequence[int], sampling: object) -> object:
            begun_beside = learning.is_set()
            answer = await generate(prompt_ids, sampling)  # type: ignore[arg-type]
            if begun_beside and learning.is_set():
                answered.release()
            return answer

        monkeypatch.setattr(engine.policy, "generate", watched)
        return engine

    report = run_training(loaded, load)  # type: ignore[arg-type]
    assert (report.status, report.steps) == ("completed", 4)
    assert waited == [True, True] and threads == {"learner"}
    rows = [row for row in read_metrics(report.run_dir / "metrics.jsonl") if "episodes/total" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert max(row.get("policy_age/max", 0) for row in rows) in (1, 2)
    records = list(read_episodes(report.run_dir / "episodes" / "train.jsonl"))
    assert len({record.episode.episode_id for record in records}) == len(records) == 24
    for record in records:
        assert all(record.step - 1 - 2 <= turn.policy_version < record.step for turn in record.episode.turns)


def test_what_is_recorded_of_older_weights_is_what_they_say(tmp_path: Path) -> None:
    """By transformers alone, on the checkpoint of the version that a turn names."""
    job = write_job(tmp_path)
    every = ("astune.trainer.save_every=1", "astune.trainer.total_steps=4", "astune.trainer.keep_checkpoints=9")
    report = run_job(job, *SHORT, *AHEAD, *every)
    folders = {0: tiny_model_dir()}
    for row in read_metrics(report.run_dir / "metrics.jsonl"):
        folders.setdefault(int(row["policy_version"]), report.run_dir / "checkpoints" / f"step_{row['step']:06d}")
    records = read_episodes(report.run_dir / "episodes" / "train.jsonl")
    turns = [turn for record in records for turn in record.episode.turns]
    assert len({turn.policy_version for turn in turns}) > 1
    for version in {turn.policy_version for turn in turns}:
        model = AutoModelForCausalLM.from_pretrained(folders[version], dtype=torch.float32)
        for turn in [turn for turn in turns if turn.policy_version == version][:4]:
            ids = torch.tensor([[*turn.prompt_ids, *turn.output_ids]])
            with torch.inference_mode():
                said = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0] / turn.temperature, -1)
            first = len(turn.prompt_ids) - 1
            expected = [float(said[first + place, token]) for place, token in enumerate(turn.output_ids)]
            assert expected == pytest.approx(list(turn.logprobs), abs=1e-4)
