"""Tiny random models of many families."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from astune.backbone.local.model.attention import NAMES
from astune.backbone.local.model.family import Family, find_family

COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 8}
HEADS = {"head_dim": 8}
BOTH = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
TREES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1} | WINDOW,
    "qwen3": HEADS,
    "qwen3_moe": EXPERTS | HEADS,
    "llama": {},
    "gemma2": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0} | WINDOW | HEADS | BOTH,
    "gemma3_text": WINDOW | HEADS | BOTH,
    "mistral": WINDOW,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2} | WINDOW | HEADS | BOTH,
    "phi3": WINDOW,
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.5, "residual_multiplier": 0.7},
    "cohere2": {"logit_scale": 0.25} | WINDOW | HEADS | BOTH,
}
ROWS: dict[str, dict[str, Any]] = {
    "qwen3_next": {"shared_expert_intermediate_size": 32} | EXPERTS | HEADS | LINEAR,
    "qwen3_5_text": HEADS | LINEAR,
    "mamba": {},
}
FAMILIES = TREES | ROWS


@dataclass(frozen=True)
class TinyModel:
    """`plain` is a copy of `model` as transformers has it, with the attention that is written out."""

    model: Any
    plain: Any
    family: Family


def make_family(name: str, attention: str = "auto", **changes: object) -> TinyModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **(COMMON | FAMILIES.get(name, {}) | changes))
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=NAMES[attention]).eval()
    for path, parameter in model.named_parameters():
        if parameter.ndim == 2 and "A_log" not in path:
            parameter.data.mul_(8)  # random weights are nearly uniform; this makes predictions differ
        if "sinks" in path:
            parameter.data.uniform_(-1, 1)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    return TinyModel(model, plain, find_family(model, attention))
