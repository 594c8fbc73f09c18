"""Runs of the local backbone that learn from preferences, with the shipped model, on CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.model.model import read_weights
from astune.config.load import load_config
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, TaskError
from astune.examples.conversation import conversation_rows
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.support.resources import tiny_model_dir
from astune.types import Episode, StopReason, Task, Turn, Verdict
from tests.backbone.local.test_examples import run_job, timeless, weights, write_job
from tests.rows import each_row

PAIRS = [("What is 3 plus 4?", "7", "5"), ("What is 2 plus 2?", "4", "10"), ("What is 9 minus 1?", "8", "8 8")]


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def asks(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def pairs() -> list[dict[str, Any]]:
    return [{"messages": [asks(q)], "chosen": says(good), "rejected": says(bad)} for q, good, bad in PAIRS]


def thumbs() -> list[dict[str, Any]]:
    both = [(q, text, good) for q, *texts in PAIRS for text, good in zip(texts, (True, False), strict=True)]
    return [{"messages": [asks(q)], "answer": says(text), "good": good} for q, text, good in both]


def margins(folder: Path) -> list[float]:
    """log p(chosen) - log p(rejected) of each pair, by plain forward passes in double precision."""
    model, chat_format = read_weights(folder).double(), ChatFormat.load(tiny_model_dir())
    model.set_attn_implementation("sdpa")

    def logprob(question: str, answer: str) -> float:
        (row,) = conversation_rows(chat_format, [asks(question), says(answer)])
        ids = torch.tensor([list(row.token_ids)])
        with torch.no_grad():
            found = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0], -1)
        return math.fsum(float(found[t - 1, ids[0, t]]) for t, trained in enumerate(row.loss_mask) if trained)

    return [logprob(question, good) - logprob(question, bad) for question, good, bad in PAIRS]


PREFER = {"total_steps": 3, "tasks_per_step": 3, "save_every": 1, "keep_checkpoints": 9, "learning_rate": 1e-3}


@pytest.mark.parametrize("kind", ["sigmoid", "simpo"])
def test_preferences_raise_the_margin(tmp_path: Path, kind: str) -> None:
    report = run_job(
        write_job(
            tmp_path,
            pairs(),
            algorithm={"method": "dpo", "preference_loss": kind, "dpo_beta": 0.2},
            trainer={**PREFER, "total_steps": 2},
        )
    )
    first, second = (row for row in timeless(report) if "loss" in row)
    before = margins(tiny_model_dir())
    after = margins(report.run_dir / "checkpoints" / "step_000002")
    assert sum(after) > sum(before)
    if kind == "sigmoid":
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-6) and first["preference/margin"] == 0
        one = margins(report.run_dir / "checkpoints" / "step_000001")
        gains = [0.2 * (now - then) for now, then in zip(one, before, strict=True)]
        assert second["preference/margin"] == pytest.approx(math.fsum(gains) / 3, abs=1e-4)
        assert second["preference/accuracy"] == sum(gain > 0 for gain in gains) / 3
        assert second["loss"] == pytest.approx(sum(math.log1p(math.exp(-gain)) for gain in gains) / 3, abs=1e-5)


def test_thumbs_raise_the_margin(tmp_path: Path) -> None:
    conf = write_job(tmp_path, thumbs(), algorithm={"method": "kto"}, trainer={**PREFER, "tasks_per_step": 6})
    report = run_job(conf)
    first, *_, last = (row for row in timeless(report) if "loss" in row)
    assert first["loss"] == pytest.approx(0.5, abs=1e-6) and first["preference/reference_point"] < 1e-6
    assert last["loss"] < first["loss"]
    assert sum(margins(report.run_dir / "checkpoints" / "step_000003")) > sum(margins(tiny_model_dir()))


@pytest.mark.fault(
    "Runs and resuming",
    "a run over preferences is resumed",
    "the reference stays that of the start, bit for bit",
)
def test_a_resumed_run_over_preferences_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    conf = write_job(tmp_path, pairs(), algorithm={"method": "dpo"}, trainer={**PREFER, "tasks_per_step": 2})
    straight = run_job(conf)
    half = "astune.experiment_name=half"
    run_job(conf, half, "astune.trainer.total_steps=1")
    resumed = run_job(conf, half, resume=True)
    assert timeless(resumed) == timeless(straight)
    a, b = weights(straight), weights(resumed)
    assert all(torch.equal(a[name], b[name]) for name in a)


def episode(task: str, number: int, reward: float, output: list[int]) -> dict[str, Any]:
    turn = Turn("a", [1, 2, 3], output, [-0.5] * len(output), 0, "stop")
    lines = TurnForest([turn]).timelines()
    verdict = Verdict(reward, reward > 0.5)
    played = Episode(f"{task}/{number}", Task(task, "q"), (turn,), lines, StopReason.COMPLETED, verdict=verdict)
    return episode_to_row(EpisodeRecord(1, "train", played))


@pytest.mark.parametrize(("method", "examples", "losers"), [("dpo", 2, 2), ("kto", 7, 5)])
def test_attempts_of_a_run_are_compared_with_each_other(
    tmp_path: Path, method: str, examples: int, losers: int
) -> None:
    rewards = {"x": [0.0, 1.0, 0.4, 0.9], "y": [0.0, 0.0, 0.0]}
    rows = [episode(t, n, reward, [7 + n, 9]) for t, given in rewards.items() for n, reward in enumerate(given)]
    conf = write_job(tmp_path, rows, algorithm={"method": method})
    from astune.examples.read import read_examples

    found = read_examples(load_config(conf).config.astune, ChatFormat.load(tiny_model_dir()))
    assert len(found) == examples and sum(not liked for each in found for liked in each.liked) == losers
    if method == "dpo":
        assert [[row.token_ids[3] for row in each.rows] for each in found] == [[8, 7], [10, 9]]


@each_row(
    ("algorithm", "message"),
    [
        ({"method": "dpo", "loss": "reinforce"}, "algorithm.loss: only methods 'rl' and 'distill' have it"),
        ({"method": "sft", "preference_loss": "ipo"}, "preference_loss: only method 'dpo' has it"),
        ({"method": "dpo", "preference_margin": 1}, "preference_margin: only preference_loss 'simpo' has it"),
        ({"method": "dpo", "loss_aggregation": "token_mean"}, "only methods 'rl', 'sft', 'rft' and 'distill' have"),
        ({"method": "kto"}, "tasks_per_step: method 'kto' compares an answer"),
    ],
)
def test_keys_that_a_method_does_not_use_are_errors(tmp_path: Path, algorithm: dict[str, Any], message: str) -> None:
    conf = write_job(tmp_path, pairs(), algorithm=algorithm, trainer={"tasks_per_step": 1})
    with pytest.raises(ConfigError, match=message):
        load_config(conf)


def test_a_thumb_is_true_or_false(tmp_path: Path) -> None:
    conf = write_job(tmp_path, [{**thumbs()[0], "good": 1}], algorithm={"method": "kto"})
    with pytest.raises(TaskError, match=r"examples\.jsonl:1: good: expected true or false, got 1"):
        run_job(conf)
