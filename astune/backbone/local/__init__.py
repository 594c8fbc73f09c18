"""`--backbone=local`: a real trainer in one process, on CPU or one GPU.

Importing this package tells the process what torch reads when it is imported. Torch itself is imported by the modules
that need it, so each is only imported when the backbone is chosen.
"""

from astune.backbone.local.process import prepare

prepare()
