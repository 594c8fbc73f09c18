"""The platform "cpu", and verl's FSDP engine on it. verl imports this module itself: see `CPU_ENVIRONMENT`.

Ray has no accelerator here, so a run tells it of GPUs that are not there: verl places its workers by nothing else.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

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

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

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


def register_engine() -> None:
    """verl's own FSDP engine, which it registers for GPUs and NPUs alone. FSDP2 is what runs on a CPU."""
    from verl.workers.engine import EngineRegistry

    from astune.backbone.verl.cpu.engine import CpuEngine

    EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(CpuEngine)


register_engine()  # after the platform is there, which the engine's module asks for
