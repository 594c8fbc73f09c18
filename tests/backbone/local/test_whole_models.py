"""Whole models in one run, beside adapters over another base, on CPU."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")

import torch
from safetensors.torch import load_file, save
from transformers import Qwen3Config, Qwen3ForCausalLM

from astune.backbone.local.engine import load_engine, load_learners, load_models
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.cli import main
from astune.config.load import load_config
from astune.config.rules.models import config_of
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ModelError
from astune.monitor.episodes import read_episodes
from astune.monitor.run_dir import RunDir
from astune.support.resources import tiny_model_dir
from astune.testing.model_dir import write_test_model_dir
from astune.types import RunReport
from astune.viewer import write_report
from tests.backbone.local.test_backbone import run_job, timeless
from tests.backbone.local.test_models import AGENTS, Taught, files, run_noting, write_village
from tests.training.killed import Killed, raise_at

WHOLE = {"lora": {"rank": None}}


def write_model(folder: Path) -> Path:
    """A smaller model with a shorter context, other tokens and another template than the shipped one."""
    write_test_model_dir(folder, context_length=512)
    template = folder / "chat_template.jinja"
    template.write_text("{{- 'Other.\n' }}" + template.read_text())
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(1)
    shape = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    return folder


def write_mixed(folder: Path, other: Path, **sections: Any) -> Path:
    """A whole wolf over the small model, a frozen one of that beside it, and a villager that is an adapter."""
    models = {
        "wolf": WHOLE | {"path": str(other), "trainer": {"learning_rate": 0.02, "updates_per_step": 2}},
        "villager": {"trainer": {"lr_schedule": "linear"}},
        "ghost": WHOLE | {"path": str(other), "frozen": True},
    }
    models |= sections.pop("models", {})
    rollout = {"agents": {"wolf_*": "wolf", "villager_*": "ghost", "elder": "villager"}, "max_tokens": 4}
    conf = write_village(folder, models=models, **sections)
    config = json.loads(conf.read_text())
    config["astune"]["rollout"] |= rollout | {"agentscope_learn_protocol": f"{AGENTS}:Hamlet"}
    config["astune"]["trainer"] |= {"total_steps": 2, "tasks_per_step": 1}
    conf.write_text(json.dumps(config))
    return conf


Straight = tuple[RunReport, Path, Path, Taught]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """A run that nothing stopped, its configuration, the small model, and what each learner was given."""
    other = write_model(tmp_path_factory.mktemp("other"))
    conf = write_mixed(tmp_path_factory.mktemp("village"), other)
    report, taught = run_noting(conf)
    return report, conf, other, taught


def test_each_learns_from_its_own_tokens_alone_bit_for_bit(straight: Straight, tmp_path: Path) -> None:
    report, conf, other, taught = straight
    assert report.status == "completed" and len(taught) == 2
    config, kept = load_config(conf).config.astune, files(report)
    by_wolf, by_villager = taught.values()
    own = config_of(config, "wolf")
    loaded = load_model(own.model)
    sampler = Sampler(loaded.model, slots=1, context_length=512)
    wolf = LocalLearner(loaded, sampler, own.algorithm, own.trainer)
    villager = load_learners(config, load_models(config)[1])["villager"]
    for name, learner, given, weights in (
        ("wolf", wolf, by_wolf, "model.safetensors"),
        ("villager", villager, by_villager, "adapter_model.safetensors"),
    ):
        for samples, rate in given:
            asyncio.run(learner.update(samples, rate))
            asyncio.run(learner.publish())
        (tmp_path / name).mkdir()
        learner.save(tmp_path / name)
        assert save(load_file(tmp_path / name / weights)) == kept[f"{name}/{weights}"]
    began, ended = load_file(other / "model.safetensors"), load_file(tmp_path / "wolf" / "model.safetensors")
    assert save(began) != save(ended)


def test_each_is_asked_in_its_own_tokens_and_a_frozen_one_has_no_learner(straight: Straight) -> None:
    report, conf, other, _ = straight
    formats = {"villager": ChatFormat.load(tiny_model_dir()), "wolf": ChatFormat.load(other)}
    said = set()
    for record in read_episodes(report.run_dir / "episodes" / "train.jsonl"):
        for turn in record.episode.turns:
            text = formats.get(turn.model, formats["wolf"]).decode(turn.prompt_ids)
            assert text.startswith("Other.\n<|im_start|>user\nWhat is") == (turn.model != "villager")
            assert "<|im_start|>user\nWhat is" in text
            said.add((turn.agent, turn.model, turn.trainable))
    assert said == {
        ("wolf_1", "wolf", True),
        ("villager_1", "ghost", False),
        ("elder", "villager", True),
        ("chief", "villager", True),
    }
    engine = load_engine(load_config(conf).config.astune)
    assert engine.learners.keys() == {"wolf", "villager"}
    (*_, last) = RunDir(report.run_dir).checkpoints()
    assert {path.name for path in last.iterdir() if path.is_dir()} == {"wolf", "villager"}
    for step, row in enumerate(timeless(report), start=1):
        assert (row["model/wolf/policy_version"], row["model/villager/policy_version"]) == (step, step)
        assert row["tokens/trained"] == row["model/wolf/tokens/trained"] + row["model/villager/tokens/trained"] > 0


@pytest.mark.fault(
    "Runs and resuming",
    "a run with a whole model beside an adapter is killed after one of them has learned from a step",
    "it goes on from the checkpoint before, both of them, and ends bit for bit as if never stopped",
)
def test_a_run_goes_on_wherever_it_was_killed(straight: Straight, monkeypatch: pytest.MonkeyPatch) -> None:
    report, conf, *_ = straight
    name = "astune.experiment_name=killed"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        raise_at(patch, 6, LocalLearner, "update")  # the villager's of step 2, when the wolf has learned
        run_job(conf, name)
    assert [path.name for path in RunDir(report.run_dir.with_name("killed")).checkpoints()] == ["step_000001"]
    resumed = run_job(conf, name, resume=True)
    assert timeless(resumed) == timeless(report) and files(resumed) == files(report)


def test_a_page_an_export_and_a_debugger_take_each_as_it_is(
    straight: Straight, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, conf, *_ = straight
    last = RunDir(report.run_dir).checkpoints()[-1]
    write_report(report.run_dir)
    assert main(["export", "--checkpoint", str(last), "--out", str(tmp_path / "all")]) == 2
    assert "It has several models (villager, wolf); name the folder of one" in capsys.readouterr().err
    assert main(["export", "--checkpoint", str(last / "wolf"), "--out", str(tmp_path / "wolf")]) == 0
    assert save(load_file(tmp_path / "wolf" / "model.safetensors")) == files(report)["wolf/model.safetensors"]
    assert main(["--conf", str(conf), "--backbone=debug", "--repeat=2"]) == 0
    assert "Other." in capsys.readouterr().out
    episodes = report.run_dir / "episodes" / "train.jsonl"
    assert main(["replay", str(episodes)]) == 0
    assert "4 replayed: 4 equal" in capsys.readouterr().out


def test_a_path_that_is_not_there_is_named_before_anything_is_loaded(straight: Straight) -> None:
    _, conf, *_ = straight
    config = load_config(conf, ["astune.models.ghost.path=./nowhere"]).config.astune
    with pytest.raises(ModelError, match=r"astune\.models\.ghost\.path: there is no folder"):
        load_models(config)


@pytest.mark.release
def test_rollouts_ahead_workers_stages_and_an_evaluation_play_and_train_the_same(
    straight: Straight, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, conf, other, _ = straight
    ahead = ("astune.synchronizer.style=async", "astune.synchronizer.max_staleness=0")
    turns = run_job(conf, "astune.experiment_name=turns", *ahead)
    spanning = "episodes/spanning_versions"
    assert [{name: row[name] for name in row if name != spanning} for row in timeless(turns)] == timeless(report)
    assert files(turns) == files(report)
    one, two = (run_job(conf, f"astune.experiment_name={n}", "astune.rollout.workers=2") for n in ("one", "two"))
    assert timeless(one) == timeless(two) and files(one) == files(two)
    stages = [{"trainer": {"total_steps": 1}}, {"trainer": {"total_steps": 1}}]
    (tmp_path / "staged").mkdir()
    staged = run_job(write_mixed(tmp_path / "staged", other, stages=stages))
    assert [row["model/wolf/policy_version"] for row in timeless(staged)] == [1, 1]
    kept = [path / "wolf" / "model.safetensors" for path in RunDir(staged.run_dir).checkpoints()]
    assert len(kept) == 2 and save(load_file(kept[0])) != save(load_file(kept[1]))
    held = f"astune.task_reader.jsonl.validation.file_path={conf.with_name('train.jsonl')}"
    settings = [held, "astune.task_reader.on_overlap=warn", "astune.evaluation.decoding=[greedy]"]
    start = RunDir(report.run_dir).checkpoints()[-1]
    assert main(["eval", "--conf", str(conf), "--checkpoint", str(start), *settings]) == 0
    league = ["--league", "none", str(report.run_dir), "--out", str(tmp_path / "league"), "--limit", "2", *settings]
    assert main(["eval", "--conf", str(conf), *league]) == 0
