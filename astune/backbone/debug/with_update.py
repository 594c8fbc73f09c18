"""Take one optimizer step over a group with a local model, show what it does, and take it back: `--with-update`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from astune.backbone.debug.sources.debug_model import DebugModel
from astune.backbone.debug.views.update import show_update
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.support.terminal import Console
from astune.types import Group, Sample

ShowUpdate = Callable[[Sequence[Sample], Group], Awaitable[None]]
"""Shows what one optimizer step over the samples of a group would do."""


def update_view(config: AstuneConfig, model: DebugModel, console: Console) -> ShowUpdate:
    """Raises `ConfigError` if the model has no weights here."""
    if model.loaded is None:
        raise ConfigError(
            f"astune.debug.with_update: {model.name} has no weights here to update; it needs a local model "
            "(leave --model out, or --model tiny)"
        )
    from astune.backbone.local.inspect import UpdateInspector

    loaded, sampler = model.loaded
    inspector = UpdateInspector(loaded, sampler, config)

    async def show(samples: Sequence[Sample], group: Group) -> None:
        show_update(console, await inspector.inspect(samples), samples, group, model.chat_format.pieces)

    return show
