"""The tutorial's commands do what its page says, in small: two steps, then both ways to export."""

import re
from pathlib import Path

import pytest

pytest.importorskip("agentscope")
pytest.importorskip("torch")
pytest.importorskip("peft")

from astune.config.load import load_config
from astune.monitor import read_metrics
from astune.support.resources import tutorial_dir
from tests.tutorial.small import SMALL, commands, run

FOLDER = tutorial_dir() / "lora"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_an_adapter_is_trained_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(tmp_path)
    train, *exports = commands(FOLDER / "README.md")
    assert run(train, *SMALL, "trainer.total_steps=2", "trainer.tasks_per_step=4", "trainer.warmup_steps=0") == 0
    rows = read_metrics(tmp_path / "runs" / "lora" / "lora" / "metrics.jsonl")
    learned = [row for row in rows if "kl/sampler" in row]
    assert learned and all(row["kl/sampler"] < 1e-5 for row in learned)  # trained is what was sampled
    assert [run(words) for words in exports] == [0, 0]
    assert (tmp_path / "my_adapter" / "adapter_model.safetensors").stat().st_size < 10**6
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "my_model")
    assert sum(parameter.numel() for parameter in merged.parameters()) == 918_912
    assert len(AutoTokenizer.from_pretrained(tmp_path / "my_model")) > 1000


def test_the_page_shows_the_two_keys_that_differ_from_the_demo() -> None:
    ours, demo = (
        load_config(path).config.astune for path in (FOLDER / "lora.yaml", tutorial_dir() / "math_agent" / "demo.yaml")
    )
    assert (
        ours.model_copy(
            update={
                "project_name": demo.project_name,
                "experiment_name": demo.experiment_name,
                "model": demo.model,
                "trainer": demo.trainer,
            }
        )
        == demo
    )
    assert ours.trainer.model_copy(update={"learning_rate": demo.trainer.learning_rate}) == demo.trainer
    (block,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert f"rank: {ours.model.lora.rank}" in block and "learning_rate: 2.0e-3" in block
    assert ours.trainer.learning_rate == 2e-3
