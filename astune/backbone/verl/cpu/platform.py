"""The platform "cpu", and verl's FSDP engine on it. verl imports this module itself: see `CPU_ENVIRONMENT`.

Ray has no accelerator here, so a run tells it of GPUs that are not there: verl places its workers by nothing else.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from astune.backbone.verl.cpu import device


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """A process is one device."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return device

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


# last, as verl's engine asks for the platform when it is imported
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """verl's own FSDP engine, which it registers for GPUs and NPUs alone; FSDP2 is what runs on a CPU. A frozen model
    stays where it is: verl would move it off the device into memory that only an accelerator pins."""

    engine_config: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        config = self.engine_config
        self.engine_config = replace(config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config
