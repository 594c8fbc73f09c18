"""Files that come with ASTune, from a checkout and from an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def default_config_dir() -> Path:
    """`default.yaml` and the overlays of the backbones."""
    return _beside_or_inside("default_config")


def tutorial_dir() -> Path:
    """One folder for each tutorial."""
    return _beside_or_inside("tutorial")


def skills_dir() -> Path:
    """One folder for each skill for coding agents."""
    return _beside_or_inside("skills")


def tiny_model_dir() -> Path:
    """The model behind `astune.model.path: tiny`, in Hugging Face format."""
    return PACKAGE / "assets" / "tiny_model"


def _beside_or_inside(name: str) -> Path:
    """A wheel carries the folder inside the package, a checkout beside it."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
