"""`verl:` and `astune.*` become verl's own configuration. What needs no verl: tests/config/test_verl_settings.py."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.verl.trainer.limits import UNREAD
from astune.backbone.verl.trainer.settings import OWNED, compose_settings, settings_of
from astune.config.load import load_config
from astune.errors import ConfigError, ModelError

JOB = """
astune:
  backbone: verl
  rollout: {agentscope_learn_protocol: a.b:C}
  task_reader: {jsonl: {training: {file_path: none.jsonl}}}
"""


def verl_config(tmp_path: Path, *overrides: str) -> Any:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    loaded = load_config(job, list(overrides))
    return compose_settings(loaded, settings_of(loaded)).actor_rollout_ref


def test_verls_own_classes_take_what_is_made_for_a_cpu_and_for_gpus(tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    for device in ("cpu", "cuda"):
        more = [f"astune.model.device={device}", "astune.trainer.betas=[0.8,0.9]", "astune.trainer.max_grad_norm=2.5"]
        config = verl_config(tmp_path, *more)
        actor, rollout = omega_conf_to_dataclass(config.actor), omega_conf_to_dataclass(config.rollout)
        assert (list(actor.optim.betas), actor.optim.clip_grad, actor.strategy) == ([0.8, 0.9], 2.5, "fsdp2")
        assert rollout.name == {"cpu": "astune_cpu", "cuda": "vllm"}[device]


def test_verls_own_classes_take_servers_on_gpus_of_their_own(tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    own = "verl.actor_rollout_ref.rollout={nnodes: 2, n_gpus_per_node: 4, checkpoint_engine: {backend: nccl}}"
    more = ("astune.model.device=cuda", "verl.trainer={nnodes: 1, n_gpus_per_node: 8}")
    config = verl_config(tmp_path, own, *more, "astune.synchronizer={style: async, max_staleness: 2}")
    rollout = omega_conf_to_dataclass(config.rollout)
    assert (rollout.nnodes, rollout.n_gpus_per_node, rollout.checkpoint_engine.backend) == (2, 4, "nccl")
    assert omega_conf_to_dataclass(config.rollout.checkpoint_engine).backend == "nccl"


def test_the_model_keeps_its_own_special_tokens(tmp_path: Path) -> None:
    assert verl_config(tmp_path).model.override_config.pad_token_id == 1000


def test_adapters_are_for_the_layers_that_local_gives_them_to(tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    model = omega_conf_to_dataclass(verl_config(tmp_path, "astune.model.lora.rank=8").model)
    every = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert (model.lora_rank, model.lora_alpha, model.target_modules) == (8, 32, every)
    assert not model.lora["merge"]
    servers = "verl.actor_rollout_ref.rollout.nnodes=1"  # with GPUs of their own get no adapter from verl
    way = "verl.actor_rollout_ref.rollout.checkpoint_engine.backend=astune_file"
    assert verl_config(tmp_path, "astune.model.lora.rank=8", servers, way).model.lora.merge
    with pytest.raises(ModelError, match=r"no linear layer of the model is called 'q_prj'\. Did you mean 'q_proj'"):
        verl_config(tmp_path, "astune.model.lora={rank: 8, targets: [q_prj, v_proj]}")


def test_keys_that_verl_does_not_know_are_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        verl_config(
            tmp_path,
            "verl.trainer.n_gpu_per_node=2",
            "verl.actor_rollout_ref.actor.fsdp_config.model_dtyp=bf16",
            "verl.actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: bf16}",
            "verl.actor_rollout_ref.model.override_config.rope_theta=1",
        )
    assert str(caught.value).splitlines() == [
        "command line: verl.trainer.n_gpu_per_node: unknown key of verl's. Did you mean "
        "'verl.trainer.n_gpus_per_node'?",
        "command line: verl.actor_rollout_ref.actor.fsdp_config.model_dtyp: unknown key of verl's. Did you mean "
        "'verl.actor_rollout_ref.actor.fsdp_config.model_dtype'?",
    ]


def test_keys_that_are_refused_are_keys_of_verls() -> None:
    """A key that verl has renamed would otherwise be refused under its old name alone."""
    import verl
    import yaml
    from hydra.utils import get_class

    tree = yaml.safe_load((Path(verl.__file__).parent / "trainer/config/_generated_ppo_trainer.yaml").read_text())
    for key in [*UNREAD, *OWNED]:
        section, *names = key.split(".")
        assert section == "model_engine" or section in tree, key
        inner = tree.get(section)
        for name in names:
            # some have a place in verl's class alone
            known = {each.name for each in fields(get_class(inner["_target_"]))} if "_target_" in inner else set()
            assert name in known | inner.keys(), key
            inner = inner.get(name)
