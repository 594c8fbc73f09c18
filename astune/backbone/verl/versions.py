"""Check what has to be installed for `--backbone=verl`, before anything heavy is imported.

verl's workers are called below its own trainer, where they change from release to release, so one release is expected.
"""

from __future__ import annotations

import importlib.util

from astune.backbone.foreign.packages import INSTALL_FLASH, Needed, lacking, missing, wrong_python
from astune.errors import MissingDependency

VERL = Needed("verl", "verl", (0, 9, 1), (0, 9, 2))
RAY = Needed("ray", "ray", (2, 50), (3,))
HYDRA = Needed("hydra-core", "hydra", (1, 3), (1, 4), "verl reads its configuration with it")
OMEGACONF = Needed("omegaconf", "omegaconf", (2, 1), (2, 4), "with the antlr4 of 2.4 hydra's grammar does not load")
TENSORDICT = Needed("tensordict", "tensordict", (0, 8), (0, 16))
CACHETOOLS = Needed("cachetools", "cachetools", (5,), (10,), "verl imports it and does not ask for it")
ALWAYS = (VERL, RAY, HYDRA, OMEGACONF, TENSORDICT, CACHETOOLS)
SERVERS = {
    "vllm": Needed("vllm", "vllm", (0, 24), (0, 25), "verl's servers on GPUs"),
    "sglang": Needed("sglang", "sglang", (0, 5, 12), (0, 5, 13), "verl's servers on GPUs"),
}
"""By what `verl.actor_rollout_ref.rollout.name` calls them."""

CUPY = 'pip install "verl[cupy-cu130]==0.9.1"'
HOW = f"""To install, with Python 3.10 to 3.12:
  pip install "astune[verl]" "verl[vllm]==0.9.1"
  {INSTALL_FLASH}
Without GPUs, and why in two calls: external/verl/README.md"""


def require_verl(server: str, attention: str, way: str) -> None:
    """Raises `MissingDependency` that names everything that is missing or of a wrong version. `server` is what answers
    episodes: "vllm", "sglang", or our own sampler, which needs nothing more; `attention` transformers' name of that in
    training workers, `way` verl's name of how weights travel to servers on GPUs of their own."""
    problems = list(wrong_python("verl"))
    for needed in (*ALWAYS, *([SERVERS[server]] if server in SERVERS else [])):
        problems += missing(needed)
    problems += lacking(attention)
    if way == "nccl" and importlib.util.find_spec("cupy") is None:
        problems.append(f"cupy is not installed, and weights travel with it (checkpoint_engine.backend: nccl); {CUPY}")
    if problems:
        raise MissingDependency("--backbone=verl cannot start:\n  - " + "\n  - ".join(problems) + f"\n{HOW}")
