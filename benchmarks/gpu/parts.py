"""The parts of `gpu_check.py`, in order of worth. This imports nothing that a bare Python lacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TINY_SECONDS = 120
SKIPPED = 5
"""How the process of a part ends that lacks a package."""


@dataclass(frozen=True)
class Part:
    """`code` is `module:function`, called with a `Job` and `options`; it has `seconds` at most. Where a package that it
    `needs` is missing it is skipped, which is no failure."""

    name: str
    title: str
    code: str
    seconds: float
    options: dict[str, Any] = field(default_factory=dict)
    needs: Sequence[str] = ()

    def written(self) -> str:
        """For a process that reads it with `Part(**json.loads(...))`."""
        return json.dumps(asdict(self))


def _speed(kind: str, shape: str, prompt: int, seconds: float) -> Part:
    said = {"sampling": "tokens sampled per second", "training": "tokens trained per second"}[kind]
    title = f"{said}, a model of the shape of Qwen3-{shape}, prompts of {prompt:,} tokens"
    return Part(f"{kind}-{shape}-{prompt}", title, f"gpu.{kind}:run", seconds, {"shape": shape, "prompt": prompt})


PARTS = (
    Part("machine", "what is there, and the peaks of copying and of multiplying matrices", "gpu.machine:run", 60),
    Part("tests", "tests marked `gpu`", "gpu.tests:run", 240),
    _speed("sampling", "0.6B", 2048, 120),
    _speed("training", "0.6B", 2048, 90),
    Part("demo-float32", "the demo, twelve steps in float32", "gpu.demo:run", 150, {"dtype": "float32"}),
    Part("profile-decode", "one step of sampling, kernel by kernel", "gpu.profiles:decode", 60),
    Part("profile-train", "one micro-batch of training, kernel by kernel", "gpu.profiles:train", 60),
    Part("memory", "the doctor's estimate of memory beside what was allocated", "gpu.memory_table:run", 120),
    Part("trees", "attention of trees: ASTune's blocks, FlexAttention and padded rows", "gpu.trees:run", 150),
    Part("demo-bfloat16", "the demo, twelve steps in bfloat16", "gpu.demo:run", 150, {"dtype": "bfloat16"}),
    Part(
        "demo-verl",
        "the demo, twelve steps with --backbone=verl: Ray, FSDP2, vLLM and the hand-over of weights on one GPU",
        "gpu.demo:run",
        300,
        {"backbone": "verl"},
        needs=("verl", "ray", "vllm"),
    ),
    _speed("sampling", "0.6B", 16384, 150),
    _speed("training", "0.6B", 16384, 120),
    _speed("sampling", "4B", 2048, 150),
    _speed("training", "4B", 2048, 150),
    _speed("sampling", "4B", 16384, 180),
    _speed("training", "4B", 16384, 150),
)
