"""`astune.model.lora`: low-rank adapters in the place of all weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from astune.config.section import Section


class LoraConfig(Section):
    rank: PositiveInt | None = Field(
        None, description="rank of the adapters, 8 to 64 as a rule; null: no adapter, all weights are trained"
    )
    alpha: PositiveInt = Field(32, description="what an adapter adds counts alpha / rank times")
    targets: tuple[str, ...] = Field(
        (), description="linear layers that get an adapter, as [q_proj, v_proj]; empty: all but the head"
    )
    rslora: bool = Field(False, description="count alpha / sqrt(rank) times instead (rank-stabilised, for high ranks)")
    dora: bool = Field(False, description="train the length of each row of a weight too (DoRA): slower")
    base: Literal["dtype", "nf4", "fp4"] = Field(
        "dtype", description="weights below the adapters: as model.dtype says, or in 4 bits by bitsandbytes"
    )
