"""The arithmetic of memory against what torch really keeps and makes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.memory.model_size import ModelSize, adapter_numbers, layer_bytes, read_size
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.doctor.memory_estimate import PROGRAMS, Extent, GpuOfRun, estimate
from tests.rows import each_row

QWEN3_8B = ModelSize(8_190_735_360, "", 36, 4096, 12288, 32, 8, 128, 151936, tied=False)
GIB = 2**30


def config_of(**sections: Any) -> AstuneConfig:
    return AstuneConfig.model_validate(sections)


def test_what_an_adapter_saves_is_told() -> None:
    extent = Extent(reduced=True, trains=True, positions=16384, tokens=16384)
    rollout = {"max_concurrent": 1}
    whole = estimate(QWEN3_8B, config_of(rollout=rollout, model={"gradient_checkpointing": True}), extent)
    assert sum(whole.values()) > 8.19e9 * 18  # weights, copy, gradient, two averages
    lora = {"rank": 16, "base": "nf4"}
    model = {"gradient_checkpointing": True, "lora": lora}
    small = estimate(QWEN3_8B, config_of(rollout=rollout, model=model), extent)
    assert sum(small.values()) < 24 * GIB
    assert not any("copy" in name for name in small)
    model["gradient_checkpointing"] = False
    assert sum(estimate(QWEN3_8B, config_of(rollout=rollout, model=model), extent).values()) > 100 * GIB


def test_eight_bits_a_reference_and_a_critic_are_in_the_sum() -> None:
    extent = Extent(reduced=True, trains=True, positions=100, tokens=100)

    def total(**sections: Any) -> float:
        return sum(estimate(QWEN3_8B, config_of(**sections), extent).values())

    count = QWEN3_8B.parameters
    assert total() - total(trainer={"optimizer": "adamw_8bit"}) == 6 * count
    with_reference = {"kl_beta": 0.1}
    assert total(algorithm=with_reference) - total() == 2 * count
    assert total(algorithm={"advantage": "gae"}) - total() == 16 * count
    lora = {"lora": {"rank": 8}}
    assert total(model=lora, algorithm=with_reference) == total(model=lora)  # the base without its adapter
    extent = replace(extent, begun=True)
    assert total(model=lora, algorithm=with_reference) - total(model=lora) == 4 * adapter_numbers(QWEN3_8B, 8, ())


def test_each_of_several_models_has_an_adapter_and_only_those_that_are_trained_an_optimizer() -> None:
    extent = Extent(reduced=True, trains=True, positions=4096, tokens=4096)
    model = {"lora": {"rank": 16}}

    def adam(models: dict[str, Any]) -> tuple[float, float, float]:
        parts = estimate(QWEN3_8B, config_of(model=model, models=models), extent)
        found = {name.split()[0].strip(","): part for name, part in parts.items()}
        return found["adapters"], found["Adam"], sum(parts.values())

    adapter, optimizer, total = adam({})
    assert adam({"a": {}}) == pytest.approx((adapter, optimizer, total))
    assert adam({"a": {}, "b": {"frozen": True}}) == pytest.approx((2 * adapter, optimizer, total + adapter))
    past = {"a": {}, "old": {"past_of": "a", "size": 5}}
    assert adam(past) == pytest.approx((6 * adapter, optimizer, total + 5 * adapter))
    assert adam({"a": {}, "b": {"lora": {"rank": 32}}, "c": {"frozen": True}}) == pytest.approx(
        (4 * adapter, 3 * optimizer, total + 3 * adapter + 2 * optimizer + adapter), rel=1e-2
    )


def test_whole_models_side_by_side_are_added_up_and_their_updates_come_by_turns() -> None:
    extent = Extent(reduced=True, trains=True, positions=4096, tokens=4096)
    small = replace(QWEN3_8B, parameters=10**9)
    whole = {"lora": {"rank": None}}

    def total(**models: Any) -> float:
        config = config_of(model={"lora": {"rank": 16}}, models=models)
        return sum(estimate(QWEN3_8B, config, extent, {"small": small}).values())

    cache = 2 * 36 * 8 * 128 * 2 * AstuneConfig().rollout.max_concurrent * (4096 + 256)
    alone, beside = total(a={}), whole | {"path": "small"}
    assert total(a={}, b=beside | {"frozen": True}) == alone + 2 * 10**9 + cache
    both = total(b=beside, c=beside)  # weights, copy and averages of each; one gradient, and what one update makes
    assert both - total(b=beside) == (4 + 2 + 8) * 10**9 + cache
    assert total(a={}, b=whole) > alone + 14 * QWEN3_8B.parameters


def test_rollouts_that_do_not_wait_take_a_copy_of_the_weights() -> None:
    extent = Extent(reduced=False, trains=True, positions=100, tokens=100)

    def copied(**sections: Any) -> float:
        ahead = config_of(synchronizer={"style": "async", "max_staleness": 1}, **sections)
        by_turns = estimate(QWEN3_8B, config_of(**sections), extent)
        return sum(estimate(QWEN3_8B, ahead, extent).values()) - sum(by_turns.values())

    assert copied() == 4 * QWEN3_8B.parameters
    adapter = 4 * adapter_numbers(QWEN3_8B, 8, AstuneConfig().model.lora.targets)
    assert copied(model={"lora": {"rank": 8}}) == adapter
    assert copied(model={"lora": {"rank": 8}}, models={"a": {}, "b": {"frozen": True}}) == 2 * adapter


def test_weights_that_are_laid_out_for_the_processor_are_a_copy_of_all_or_none() -> None:
    extent = Extent(reduced=False, trains=True, positions=100, tokens=100)

    def laid_out(**sections: Any) -> float:
        config = config_of(**sections)
        more = estimate(QWEN3_8B, config, replace(extent, laid_out=True))
        return sum(more.values()) - sum(estimate(QWEN3_8B, config, extent).values())

    assert laid_out() == 4 * QWEN3_8B.parameters + PROGRAMS * 1.5 * 2**20
    assert laid_out(model={"lora": {"rank": 8}}) == laid_out(rollout={"engine": "vllm"}) == 0


def test_a_vllm_server_takes_the_place_of_the_samplers_cache_and_copy() -> None:
    extent = Extent(reduced=True, trains=True, positions=10**4, tokens=100)
    count = QWEN3_8B.parameters

    def parts(**rollout: Any) -> Mapping[str, float]:
        return estimate(QWEN3_8B, config_of(rollout={"engine": "vllm", **rollout}), extent)

    names = " ".join(parts())
    assert "copy" not in names
    assert "key-value cache" not in names
    elsewhere = sum(parts(vllm={"base_url": "http://h:1"}).values())
    assert sum(parts().values()) - elsewhere == 2 * count + GIB
    masks = parts()["attention masks"]
    elsewhere -= masks  # flash attention needs none
    extent = replace(extent, gpu=GpuOfRun(1, 1000.0 * GIB))
    assert sum(parts(vllm={"gpus": [0]}).values()) == elsewhere
    standing = (4 + 8) * count  # weights and averages; gradient and activations are there when it sleeps
    assert sum(parts().values()) == standing + 400 * GIB
    assert sum(parts(vllm={"gpus": [1], "gpu_memory_utilization": 0.5}).values()) == standing + 500 * GIB
    extent = replace(extent, gpu=GpuOfRun(0, 10.0 * GIB))
    assert sum(parts().values()) == elsewhere
    extent = replace(extent, trains=False)
    assert "key-value cache" in " ".join(parts()), "the debugger asks the sampler"


def test_who_does_not_train_needs_neither_gradient_nor_logits() -> None:
    extent = Extent(reduced=False, trains=False, positions=100, tokens=100)
    assert [name.split(" (")[0] for name in estimate(QWEN3_8B, config_of(), extent)] == ["weights", "key-value cache"]


@each_row(("hidden", "intermediate", "layers"), [(64, 256, 2), (128, 384, 3)])
@each_row(("rank", "attention"), [(None, "auto"), (4, "auto"), (None, "eager")])
def test_activations_and_adapters_are_those_of_torch(
    hidden: int, intermediate: int, layers: int, rank: int | None, attention: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from astune.backbone.local.learning.batch import micro_batches
    from astune.backbone.local.learning.forward import last_layer
    from astune.backbone.local.model.model import load_model
    from astune.types import Sample, Span, Timeline

    shape = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=512,
    )
    transformers.Qwen3ForCausalLM(shape).save_pretrained(tmp_path)
    size = read_size(tmp_path)
    config = config_of(model={"path": str(tmp_path), "device": "cpu", "lora": {"rank": rank}, "attention": attention})
    loaded = load_model(config.model)
    if rank is not None:
        assert adapter_numbers(size, rank, ()) == sum(parameter.numel() for parameter in loaded.trainable())
    tokens = 300
    line = Timeline(
        "a", [3 + i % 60 for i in range(tokens)], (Span(0, 10, tokens, 0, 1.0, True, [-1.0] * (tokens - 10)),)
    )
    (batch,) = micro_batches([Sample(line, (1.0,), (1.0,), "t", "e")], tokens, torch.device("cpu"))
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    held = []  # so that no two tensors have one address
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(keep(t)) or t, lambda tensor: tensor):
        last_layer(loaded.model.base_model, batch)
    for parameter in loaded.model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    extent = Extent(reduced=False, trains=True, positions=tokens, tokens=tokens)
    squares = sum(taken for name, taken in estimate(size, config, extent).items() if name.startswith("attention "))
    expected = tokens * layers * layer_bytes(size, 4, rank is not None) + squares
    assert 1 / 1.8 < sum(kept.values()) / expected < 1.5  # on a CPU attention keeps no copies of keys
    assert math.isclose(size.parameters, sum(p.numel() for n, p in loaded.model.named_parameters() if "lora" not in n))


def qwen3(parameters: int, layers: int, hidden: int, intermediate: int, heads: int) -> ModelSize:
    return ModelSize(parameters, "", layers, hidden, intermediate, heads, 8, 128, 151936, tied=hidden < 4096)


QWEN3 = {
    "Qwen3-0.6B": (qwen3(596_049_920, 28, 1024, 3072, 16), 8, "dtype"),
    "Qwen3-1.7B": (qwen3(1_720_574_976, 28, 2048, 6144, 16), 6, "dtype"),
    "Qwen3-4B": (qwen3(4_022_468_096, 36, 2560, 9728, 32), 4, "nf4"),
    "Qwen3-8B": (QWEN3_8B, 1, "nf4"),
}


@pytest.mark.parametrize("name", list(QWEN3))
def test_the_shipped_configuration_fits_one_card_of_24_gb_as_its_page_says(name: str) -> None:
    size, slots, base = QWEN3[name]
    path = Path("tutorial/math_agent/lora_24gb.yaml")
    config = load_config(path, [f"astune.rollout.max_concurrent={slots}", f"astune.model.lora.base={base}"]).config
    extent = Extent(reduced=True, trains=True, positions=16384, tokens=16384)
    parts = [each / GIB for each in estimate(size, config.astune, extent).values()]
    weights, cache, *adapter, logits, kept, recomputed, masks = parts
    row = [weights, cache, sum(adapter), logits, kept + recomputed, masks, sum(parts)]
    written = f"| {name} | {base} | {slots} | " + " | ".join(f"{each:.1f}" for each in row) + " |"
    assert written in Path("docs/local.md").read_text(encoding="utf-8").splitlines()
    assert sum(parts) < 0.95 * 24


FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3": {"hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128, "tie_word_embeddings": True},
    "Qwen2": {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4},
    "Llama": {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8},
    "Mistral": {"hidden_size": 5120, "intermediate_size": 14336, "head_dim": 128, "num_key_value_heads": 8},
    "Mixtral": {"intermediate_size": 14336, "num_local_experts": 8},
    "Qwen3Moe": {"num_experts": 128, "moe_intermediate_size": 768, "head_dim": 128, "num_key_value_heads": 4},
    "Gemma2": {"vocab_size": 256000, "hidden_size": 3584, "intermediate_size": 14336, "num_key_value_heads": 8},
}


@each_row("family", FAMILIES)
def test_parameters_told_from_a_configuration_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    """Of a model on the hub there is no more than its config.json."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shape = getattr(transformers, f"{family}Config")(num_hidden_layers=12, **FAMILIES[family])
    shape.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(shape)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert read_size(tmp_path).parameters == pytest.approx(counted, rel=0.005)
