"""From a configuration of ASTune to one of verl, where no verl is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from astune.backbone.verl.backbone import VerlBackbone
from astune.backbone.verl.demand import Demand
from astune.backbone.verl.trainer.settings import CONVERSIONS, Settings, as_it_runs, settings_of
from astune.cli import main
from astune.config.keys import fates
from astune.config.load import LoadedConfig, load_config
from astune.config.section import OnVerl
from astune.errors import ConfigError
from tests.rows import each_row

JOB = """
astune:
  backbone: verl
  rollout: {agentscope_learn_protocol: a.b:C}
  task_reader: {jsonl: {training: {file_path: none.jsonl}}}
"""


def loaded_from(tmp_path: Path, *overrides: str, text: str = "") -> LoadedConfig:
    job = tmp_path / "job.yaml"
    job.write_text(JOB + text)
    return load_config(job, list(overrides))


def made(tmp_path: Path, *overrides: str, text: str = "") -> Settings:
    return settings_of(loaded_from(tmp_path, *overrides, text=text))


def test_every_key_says_what_becomes_of_it_and_every_conversion_is_there() -> None:
    for key, rule in fates(OnVerl).items():
        assert rule.to or rule.ours or rule.ignored or rule.unsupported, key
        assert set(rule.to.values()) <= set(CONVERSIONS), key


def test_values_come_from_the_files_astune_keys_and_the_users_section_in_this_order(tmp_path: Path) -> None:
    settings = made(
        tmp_path,
        "verl.trainer.n_gpus_per_node=2",
        "astune.trainer.weight_decay=0.25",
        text="verl:\n  actor_rollout_ref:\n    rollout: {name: sglang}\n",
    )
    assert settings.tree["trainer"] == {"device": "cpu", "nnodes": 1, "n_gpus_per_node": 2}
    assert settings.tree["actor_rollout_ref"]["rollout"]["name"] == "sglang"
    assert settings.origins["actor_rollout_ref.rollout.name"].endswith("job.yaml:8")
    assert settings.origins["trainer.n_gpus_per_node"] == "command line"
    assert (
        settings.origins["actor_rollout_ref.actor.optim.weight_decay"] == "astune.trainer.weight_decay (command line)"
    )
    assert settings.origins["actor_rollout_ref.actor.strategy"] == "verl_default.yaml"
    assert settings.origins["actor_rollout_ref.actor.use_torch_compile"] == "verl_cpu.yaml"
    assert yaml.safe_load(settings.yaml()) == settings.tree


@pytest.mark.parametrize(
    ("overrides", "device", "rollout"),
    [
        ((), "cpu", "astune_cpu"),
        (("astune.model.path=someone/model",), "cuda", "vllm"),
        (("astune.model.path=someone/model", "astune.model.device=cpu"), "cpu", "astune_cpu"),
        (("astune.model.device=cuda",), "cuda", "vllm"),
    ],
)
def test_gpus_compute_unless_the_file_says_cpu_or_trains_the_shipped_model(
    tmp_path: Path, overrides: tuple[str, ...], device: str, rollout: str
) -> None:
    tree = made(tmp_path, *overrides).tree
    assert (tree["trainer"]["device"], tree["actor_rollout_ref"]["rollout"]["name"]) == (device, rollout)


def test_precision_and_optimizer_reach_verl(tmp_path: Path) -> None:
    tree = made(tmp_path, "astune.model.dtype=bfloat16", "astune.trainer.optimizer=adamw_fused").tree
    actor = tree["actor_rollout_ref"]["actor"]
    assert actor["fsdp_config"]["mixed_precision"]["param_dtype"] == "bf16"
    assert actor["optim"]["override_optimizer_config"] == {"fused": True}


@each_row(
    ("override", "said"),
    [
        (
            "verl.actor_rollout_ref.model.lora_rank=8",
            "verl.actor_rollout_ref.model.lora_rank: ASTune goes by astune.model",
        ),
        ("astune.trainer.optimizer=adamw_8bit", "astune.trainer.optimizer: got 'adamw_8bit': bitsandbytes takes no"),
        (
            "astune.synchronizer={style: async, max_staleness: 1}",
            "astune.synchronizer.style: got 'async', but servers share the GPUs of the training workers and sleep "
            "while these learn; expected 'fixed', or verl.actor_rollout_ref.rollout.nnodes and n_gpus_per_node",
        ),
        (
            "verl.actor_rollout_ref.rollout.nnodes=1",
            "verl.actor_rollout_ref.rollout.nnodes: no weights would reach servers on GPUs of their own",
        ),
        ("astune.model.device=cuda:1", "astune.model.device: got 'cuda:1', but Ray gives each process its GPU"),
        ("verl.trainer=3", "verl.trainer: expected a section with device, nnodes, n_gpus_per_node, got 3"),
        ("verl.trainer.nnodes.x=3", "verl.trainer.nnodes.x: verl.trainer.nnodes is a value, not a section"),
        ("verl.algorithm.gamma=0.9", "verl.algorithm.gamma: ASTune goes by astune.algorithm; set that instead"),
        (
            "verl.actor_rollout_ref.rollout.top_p=0.9",
            "verl.actor_rollout_ref.rollout.top_p: ASTune goes by astune.rollout",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(tmp_path: Path, override: str, said: str) -> None:
    loaded = loaded_from(tmp_path, override)
    with pytest.raises(ConfigError) as caught:
        settings_of(loaded)
    assert f"command line: {said}" in str(caught.value)


def test_rollouts_go_on_while_workers_train_where_servers_have_gpus_of_their_own(tmp_path: Path) -> None:
    ahead = "astune.synchronizer={style: async, max_staleness: 1}"
    apart = "verl.actor_rollout_ref.rollout={nnodes: 1, n_gpus_per_node: 4, checkpoint_engine: {backend: nccl}}"
    loaded = loaded_from(tmp_path, "astune.model.device=cuda", "verl.trainer.n_gpus_per_node=8", ahead, apart)
    assert Demand.of(settings_of(loaded).tree) == Demand(1, 8, 1, 4, 1)


def test_adapters_reach_verl_and_its_servers_read_the_base_themselves(tmp_path: Path) -> None:
    parts = made(tmp_path, "astune.model.lora={rank: 8, targets: [q_proj, v_proj]}").tree["actor_rollout_ref"]
    model = {name: parts["model"][name] for name in ("lora_rank", "lora_alpha", "target_modules")}
    assert model == {"lora_rank": 8, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
    assert parts["rollout"]["load_format"] == "safetensors"
    without = made(tmp_path).tree["actor_rollout_ref"]
    assert "lora_alpha" not in without["model"] and "load_format" not in without["rollout"]


def test_a_run_that_begins_with_an_adapter_loads_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}')
    tree = made(tmp_path, "astune.model.lora.rank=8", f"astune.model.path={tmp_path}").tree
    assert tree["actor_rollout_ref"]["model"]["path"] == "someone/model"


@each_row(
    ("override", "said"),
    [
        ("astune.model.lora.rslora=true", "astune.model.lora.rslora: got True: verl tells peft rank, alpha and layers"),
        ("astune.model.lora.dora=true", "astune.model.lora.dora: got True: verl trains no such adapters with FSDP"),
        ("astune.model.lora.base=nf4", "astune.model.lora.base: got 'nf4': verl shares the base out over the GPUs"),
        (
            "verl.actor_rollout_ref.actor.strategy=fsdp",
            "verl.actor_rollout_ref.actor.strategy: got 'fsdp'; expected 'fsdp2'",
        ),
        (
            "verl.actor_rollout_ref.model.lora.merge=true",
            "verl.actor_rollout_ref.model.lora.merge: ASTune goes by astune",
        ),
    ],
)
def test_what_does_not_go_with_an_adapter_on_verl_is_refused(tmp_path: Path, override: str, said: str) -> None:
    loaded = loaded_from(tmp_path, "astune.model.lora.rank=8", override)
    with pytest.raises(ConfigError) as caught:
        settings_of(loaded)
    assert f"command line: {said}" in str(caught.value)


def test_config_convert_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    assert main(["config", "convert", "--conf", str(job), "--backbone", "verl"]) == 0
    assert "      lr: 1.0e-06  # astune.trainer.learning_rate (default)\n" in capsys.readouterr().out


STAGES = """
  stages:
    - {algorithm: {method: sft}, trainer: {examples: none.jsonl, total_steps: 2}}
    - {trainer: {total_steps: 2%s}}
"""


def test_a_later_stage_computes_where_the_first_did(tmp_path: Path) -> None:
    """Its model is a checkpoint of the run, and no longer the shipped one."""
    loaded = loaded_from(tmp_path, text=STAGES % "")
    config = loaded.stages[1].config.astune
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": "runs/job/step_000002"})})
    tree = settings_of(as_it_runs(loaded, config)).tree
    assert tree["trainer"]["device"] == "cpu" and tree["actor_rollout_ref"]["rollout"]["name"] == "astune_cpu"
    assert tree["actor_rollout_ref"]["model"]["path"] == "runs/job/step_000002"


def test_what_a_later_stage_cannot_do_is_found_before_the_first_begins(tmp_path: Path) -> None:
    loaded = loaded_from(tmp_path, text=STAGES % ", optimizer: adamw_8bit")
    with pytest.raises(ConfigError, match=r"^stage 2: .*astune.trainer.optimizer: got 'adamw_8bit': bitsandbytes"):
        VerlBackbone().run(loaded)


@each_row(
    ("keys", "said"),
    [
        (["actor.strategy=megatron"], "got 'megatron'; expected 'fsdp2'"),
        (["ref.strategy=fsdp"], "got 'fsdp'; expected 'fsdp2'"),
        (["actor.ulysses_sequence_parallel_size=2"], "got 2, which 1 GPUs do not come out even with"),
        (
            ["actor.fsdp_config.ulysses_sequence_parallel_size=1", "model.override_config.attn_implementation=sdpa"],
            "",
        ),
        (["actor.ppo_epochs=2"], "nothing reads it here; set astune.trainer.updates_per_step"),
        (["rollout.agent.num_workers=2"], "nothing reads it here; set astune.rollout.agentscope_learn_protocol"),
        (["actor.profiler.enable=true"], "nothing reads it here; take the key out"),
        (["actor.fsdp_config.offload_policy=true", "actor.fsdp_config.fsdp_size=2"], ""),
    ],
)
def test_keys_of_verls_that_would_not_do_what_they_say_are_refused(keys: list[str], said: str, tmp_path: Path) -> None:
    overrides = ["astune.model.device=cuda", *(f"verl.actor_rollout_ref.{key}" for key in keys)]
    if not said:
        assert made(tmp_path, *overrides)
        return
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, *overrides)
    key = keys[0].partition("=")[0]
    assert str(caught.value).startswith(f"command line: verl.actor_rollout_ref.{key}: {said}")


def test_a_row_is_shared_out_over_ranks_by_flash_attention_alone(tmp_path: Path) -> None:
    two = ["verl.trainer.n_gpus_per_node=2", "verl.actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
    assert made(tmp_path, "astune.model.device=cuda", *two)
    with pytest.raises(ConfigError, match="flash attention, which a CPU has not"):
        made(tmp_path, *two)
    other = "verl.actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    with pytest.raises(ConfigError, match="each rank would see its own part of a row alone"):
        made(tmp_path, "astune.model.device=cuda", *two, other)
    with pytest.raises(ConfigError, match="sequence_parallel_size: the attention is 'eager', by which each rank"):
        made(tmp_path, "astune.model.device=cuda", *two, "astune.model.attention=eager")


OVERRIDE = "verl.actor_rollout_ref.model.override_config.attn_implementation"


@each_row(
    ("overrides", "expected"),
    [
        ([], "sdpa"),
        (["astune.model.device=cuda"], "flash_attention_2"),
        (["astune.model.path=Qwen/Qwen3-8B"], "flash_attention_2"),
        (["astune.model.device=cuda", "astune.model.dtype=float32"], "sdpa"),
        (["astune.model.device=cuda", "astune.model.attention=sdpa"], "sdpa"),
        (["astune.model.attention=eager"], "eager"),
        (["astune.model.device=cuda", f"{OVERRIDE}=flash_attention_3"], "flash_attention_3"),
        (["astune.model.device=cuda", "astune.model.attention=eager", f"{OVERRIDE}=sdpa"], "sdpa"),
        (["astune.model.device=cuda", "verl.actor_rollout_ref.model.override_config={}"], "flash_attention_2"),
    ],
)
def test_attention_is_that_of_flash_attn_on_gpus_in_half_precision(
    overrides: list[str], expected: str, tmp_path: Path
) -> None:
    assert made(tmp_path, *overrides).attention == expected


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "astune.model.attention=flash_attention_2",
            "astune.model.attention: got 'flash_attention_2', whose kernels a",
        ),
        (f"{OVERRIDE}=flash_attention_2", f"{OVERRIDE}: got 'flash_attention_2', whose kernels a CPU has not"),
        (f"{OVERRIDE}=flash_attention_3", f"{OVERRIDE}: got 'flash_attention_3', whose kernels a CPU has not"),
    ],
)
def test_flash_attn_on_a_cpu_is_refused_before_workers_load_the_model(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        VerlBackbone().run(loaded_from(tmp_path, override))


@pytest.mark.parametrize("key", ["param_offload", "optimizer_offload", "offload_policy"])
def test_a_cpu_has_nothing_to_offload_to(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key}: a CPU has no other memory"):
        made(tmp_path, f"verl.actor_rollout_ref.actor.fsdp_config.{key}=true")
