"""`--backbone=local`: a real trainer in one process, on CPU or one GPU.

Importing this package imports torch, so it is only imported when the backbone is chosen.
"""

import os

# Threads of torch that wait for work by spinning make a run ten times slower as soon as anything else uses the
# processor. It has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from astune.backbone.local.backbone import LocalBackbone
from astune.backbone.local.engine import load_engine

__all__ = ["LocalBackbone", "load_engine"]
