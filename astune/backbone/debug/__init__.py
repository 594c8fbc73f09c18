"""`--backbone=debug`: a few episodes, one after another, everything shown, nothing trained."""

from astune.backbone.debug.backbone import DebugBackbone

__all__ = ["DebugBackbone"]
