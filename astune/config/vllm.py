"""`astune.rollout.vllm`: the server of `astune.rollout.engine: vllm`, which the run starts or which runs already."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt

from astune.config.section import Section


class VllmConfig(Section):
    base_url: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None,
        description="a server that runs already, as http://host:8000/v1, in place of one that the run starts; weights "
        "go to it through astune.runs_dir, which it must see at the same place",
    )
    python: str | None = Field(
        None,
        description="interpreter of the environment that has vLLM, as 'vllm-env/bin/python'; null: that of the run",
    )
    gpus: tuple[NonNegativeInt, ...] = Field(
        (),
        description="numbers of the GPUs that it shares a model out to; empty, or with astune.model.device's own among "
        "them: it sleeps while the model is trained",
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="part of each GPU's memory that it takes; null: 0.9, and 0.4 beside the trainer"
    )
