"""`--backbone=local`: a real trainer in one process, on CPU or one GPU.

Importing this package imports torch, so it is only imported when the backbone is chosen.
"""

import os

# Threads of torch that wait for work by spinning make a run several times slower as soon as anything else uses the
# processor; to fall asleep after every operator and be woken for the next takes a third of an update. So they spin for
# a little while (docs/performance.md). It has to be said before torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from astune.backbone.local.backbone import LocalBackbone
from astune.backbone.local.engine import load_engine

__all__ = ["LocalBackbone", "load_engine"]
