"""verl's FSDP engine where there is no accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


class CpuEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """A frozen model stays where it is: verl would move it off the device into memory that only an accelerator pins."""

    engine_config: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        config = self.engine_config
        self.engine_config = replace(config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config
