"""`--backbone=local`: a real trainer in one process, on CPU or one GPU.

Importing this package imports torch, so it is only imported when the backbone is chosen.
"""

from astune.backbone.local.process import prepare

prepare()

from astune.backbone.local.engine import LocalBackbone, load_engine  # noqa: E402

__all__ = ["LocalBackbone", "load_engine"]
