"""What `astune.rollout.engine: vllm` cannot go with."""

from __future__ import annotations

from typing import Any

from astune.config.rules.rollouts import engine_contradictions
from astune.config.schema import AstuneConfig
from tests.rows import each_row


def found(values: dict[str, Any], *, plays: bool = True) -> list[str]:
    config = AstuneConfig.model_validate({"backbone": "local", **values})
    return [key for key, _ in engine_contradictions(config, plays=plays)]


VLLM = {"engine": "vllm"}


@each_row(
    ("values", "keys"),
    [
        ({"rollout": VLLM}, []),
        ({"rollout": VLLM, "model": {"lora": {"rank": 8}}}, []),
        ({"rollout": VLLM, "model": {"lora": {"rank": 8, "dora": True}}}, ["astune.model.lora.dora"]),
        ({"rollout": VLLM, "model": {"lora": {"rank": 8, "base": "nf4"}}}, ["astune.model.lora.base"]),
        ({"rollout": VLLM, "model": {"lora": {"rank": 513}}}, ["astune.model.lora.rank"]),
        ({"rollout": {**VLLM, "top_p": 0.9}}, []),
        ({"rollout": {**VLLM, "top_p": 0.9, "temperature": 0.7}}, ["astune.rollout.temperature"]),
        ({"rollout": {**VLLM, "vllm": {"base_url": "http://h:1"}}}, []),
        ({"rollout": {**VLLM, "vllm": {"base_url": "http://h:1", "gpus": [1]}}}, ["astune.rollout.vllm.gpus"]),
        ({"rollout": {"vllm": {"gpus": [1]}}}, ["astune.rollout.vllm.gpus"]),
        ({"rollout": {"vllm": {"python": "p"}}}, ["astune.rollout.vllm.python"]),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_its_key(values: dict[str, Any], keys: list[str]) -> None:
    assert found(values) == keys


def test_vllm_is_refused_where_nothing_is_played() -> None:
    assert found({"rollout": VLLM}, plays=False) == ["astune.rollout.engine"]
