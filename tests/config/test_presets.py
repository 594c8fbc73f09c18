"""`astune.algorithm.preset`: a few lines below the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from astune.config.algorithm import Preset
from astune.config.keys import LEAVES
from astune.config.load import LoadedConfig, load_config
from astune.config.source import Origin
from astune.errors import ConfigError
from astune.support.resources import default_config_dir
from tests.rows import each_row

PRESET = "astune.algorithm.preset"
FOLDER = default_config_dir() / "presets"
JOB = """\
astune:
  task_reader: {jsonl: {training: {file_path: train.jsonl}}}
  rollout: {agentscope_learn_protocol: 'agent.py:W'}
  trainer: {total_steps: 1}
"""


def load(folder: Path, algorithm: str, *overrides: str) -> LoadedConfig:
    (folder / "job.yaml").write_text(f"{JOB}  algorithm: {algorithm}\n")
    return load_config(folder / "job.yaml", overrides, backbone="local")


def test_every_preset_is_a_file_and_every_file_a_preset() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(get_args(Preset))


@each_row("name", get_args(Preset))
def test_a_preset_says_its_values_and_works_as_it_is(tmp_path: Path, name: str) -> None:
    loaded = load(tmp_path, f"{{preset: {name}}}")
    file = FOLDER / f"{name}.yaml"
    assert file.read_text().splitlines()[1].startswith("# ")  # where it comes from, and what is otherwise here
    said = {key for key, place in loaded.origins.items() if isinstance(place, Origin) and place.file == file}
    assert {f"astune.algorithm.{key}" for key in ("advantage", "loss", "loss_aggregation")} <= said
    assert all(key.startswith("astune.algorithm.") and key not in loaded.set_by_user() for key in said)
    silent = [key for key in LEAVES if key not in said and key.startswith("astune.algorithm.")]
    assert all(key == PRESET or not loaded.differs_from_default(key) for key in silent)


def test_the_users_file_and_the_command_line_win_over_a_preset(tmp_path: Path) -> None:
    loaded = load(tmp_path, "{preset: grpo, clip_high: 0.3}", "astune.algorithm.kl_beta=0")
    algorithm = loaded.config.astune.algorithm
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.kl_beta) == (0.2, 0.3, 0)
    assert loaded.origins["astune.algorithm.clip_high"] == Origin(tmp_path / "job.yaml", 5)
    assert load(tmp_path, "{}", "astune.algorithm.preset=gspo").config.astune.algorithm.loss == "gspo"


def test_an_unknown_preset_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"job\.yaml:5: astune\.algorithm\.preset: .*got 'gpso'\. Did you mean 'gspo'"
    ):
        load(tmp_path, "{preset: gpso}")


def test_a_key_of_a_preset_that_the_users_loss_does_not_use_is_placed_in_the_preset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"presets/gspo\.yaml:7: astune\.algorithm\.clip_low: the loss 'reinforce'"):
        load(tmp_path, "{preset: gspo, loss: reinforce}")
