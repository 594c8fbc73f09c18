"""What Trinity's trainer is told of the versions of `astune online`, and what it cannot honour. Needs no Trinity."""

from pathlib import Path

import pytest

from astune.backbone.trinity.conversion.convert import Converted
from astune.backbone.trinity.conversion.online import convert_online
from astune.config.load import load_config
from astune.errors import ConfigError
from tests.rows import each_row


def converted(folder: Path, *settings: str) -> Converted:
    conf = folder / "service.yaml"
    conf.write_text("astune:\n  model: {path: tiny}\n  trainer: {learning_rate: 1.0e-4, warmup_steps: 3}\n")
    loaded = load_config(conf, settings, backbone="trinity", for_run=False)
    return convert_online(loaded, folder / "service")


def test_trinity_trains_alone_and_saves_after_every_update(tmp_path: Path) -> None:
    found = converted(tmp_path, "astune.algorithm.loss=gspo")
    assert found.tree["mode"] == "train" and found.tree["trainer"]["save_interval"] == 1
    assert found.tree["trainer"]["total_steps"] is None and found.tree["continue_from_checkpoint"] is True
    optimizer = found.tree["algorithm"]["optimizer"]
    assert (optimizer["lr"], optimizer["lr_warmup_steps"]) == (1e-4, 3)
    assert found.tree["algorithm"]["policy_loss_fn"] == "gspo"
    assert found.origins["mode"] == "trinity_online.yaml" and "mode: train  # trinity_online.yaml" in found.yaml()
    assert found.tree["checkpoint_root_dir"] == str(tmp_path / "service" / "trinity")


@each_row(
    "setting",
    [
        "astune.algorithm.advantage=running_mean",
        "astune.algorithm.kto_bad_weight=2.0",
        "astune.trainer.updates_per_step=2",
        "astune.trainer.keep_checkpoints=5",
        "astune.synchronizer.style=async",
    ],
)
def test_keys_that_are_not_up_to_trinity_here_are_taken(tmp_path: Path, setting: str) -> None:
    assert converted(tmp_path, setting).tree == converted(tmp_path).tree


@each_row(
    ("setting", "said"),
    [
        (
            "astune.rollout.temperature=0.5",
            "command line: astune.rollout.temperature: got 0.5; Trinity trains",
        ),
        ("astune.algorithm.advantage=gae", "astune.algorithm.advantage: got 'gae': Trinity's critic learns"),
        ("astune.algorithm.kl_beta=0.1", "astune.algorithm.kl_beta: got 0.1: on Trinity each token's advantage"),
        ("astune.algorithm.loss=minirl", "there is no 'minirl' on Trinity. There are: ppo_clip"),
        ("astune.model.lora.rank=4", "astune.model.lora.rank: got 4"),
        ("trinity.mode=both", "command line: trinity.mode: has no effect on online training; take the key out"),
        ("trinity.data_processor.experience_pipeline.save_input=true", "save_input: has no effect on online training"),
        ("trinity.model.tinker.enable=false", "verl, cuts the rows of an update into batches of a fixed number"),
        (
            "trinity.model.tinker.base_url=http://far:1",
            "trinity.model.tinker.base_url: a version is a folder",
        ),
        ("trinity.model.tinker.rank=8", "trinity.model.tinker.rank: got 8: a version is a folder"),
        ("trinity.cluster.ray_address=auto", "trinity.cluster.ray_address: got 'auto', but the tinker server"),
    ],
)
def test_what_trinity_cannot_honour_is_said_by_name(tmp_path: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        converted(tmp_path, setting)
    assert said in str(error.value)
