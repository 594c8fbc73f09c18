"""The engine that plays without training: for an evaluation, a search for prompts, a comparison."""

from __future__ import annotations

from astune.config.load import LoadedConfig
from astune.errors import ConfigError
from astune.plugins import load_plugin
from astune.training.engine import LoadEngine

ENGINES = {"local": "astune.backbone.local.engine:load_engine"}
PLAYING = ("local", "verl")
"""Backbones that play with a checkpoint."""


def playing_engine(
    loaded: LoadedConfig, backbone: str | None = None, engine: str | None = None
) -> tuple[LoadEngine, bool]:
    """The engine that plays, and True if it takes a checkpoint as the folder of a model, whichever backbone wrote it.
    `backbone` and `engine` are what the user named. An engine of the user's own loads its own checkpoints. A
    configuration of another backbone is played in this process. Raises ConfigError."""
    if engine is not None:
        return load_plugin(engine, kind="engine", builtin=ENGINES), False
    if backbone is not None and backbone not in PLAYING:
        raise ConfigError(f"--backbone {backbone}: it plays no checkpoints; expected {' or '.join(PLAYING)}")
    if loaded.config.astune.backbone != "verl":
        return load_plugin("local", kind="engine", builtin=ENGINES), True
    from astune.backbone.verl.backbone import engine_of

    return engine_of(loaded), True
