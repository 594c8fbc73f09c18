"""Check what has to be installed for `--backbone=trinity`, before anything heavy is imported.

Trinity-RFT is a moving target: a version that is only a little newer fails deep inside a Ray actor. So every package is
looked up by name and version first, and one message says what is there, what is expected and what to type.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

from astune.backbone.foreign.packages import INSTALL_FLASH, Needed, lacking, missing, wrong_python
from astune.errors import MissingDependency

TRINITY = Needed("trinity-rft", "trinity", (0, 6), (0, 7))
RAY = Needed("ray", "ray", (2, 50), (3,))
TINKER = Needed("tinker", "tinker", (0, 25), (0, 26), "for trinity.model.tinker")
VERL = Needed("verl", "verl", (0, 7, 1), (0, 9), "Trinity's trainer on GPUs")
VLLM = Needed("vllm", "vllm", (0, 22), (0, 23, 1), "Trinity's engine on GPUs")

HOW = f"""To install, with Python 3.10 to 3.12:
  pip install "astune[trinity]"
  pip install "vllm>=0.22,<=0.23.0" "numpy>=2" "transformers>=5.23,<6"
  {INSTALL_FLASH}
Without GPUs, and why in two calls: external/trinity/README.md"""


def require_trinity(*, tinker: bool = False, verl: bool = False, attention: str = "") -> None:
    """Raises `MissingDependency` that names everything that is missing or of a wrong version.

    `tinker`: the run uses the tinker engine and trainer. `verl`: it trains with verl on GPUs, sampling with vLLM, and
    `attention` is transformers' name of that in verl's workers.
    Without `verl` a module called `vllm` must still be there, of any version: Trinity 0.6.0 imports it always.
    """
    problems = list(wrong_python("Trinity-RFT"))
    for needed in (TRINITY, RAY, *([TINKER] if tinker else []), *([VERL, VLLM] if verl else [])):
        problems += missing(needed)
    if not verl and importlib.util.find_spec("vllm") is None:
        problems.append("vllm is not installed, and Trinity 0.6.0 imports it whatever the engine; expected any version")
    problems += lacking(attention) if verl else ()
    if not problems:
        problems += _find_broken_import()
    if problems:
        raise MissingDependency("--backbone=trinity cannot start:\n  - " + "\n  - ".join(problems) + f"\n{HOW}")


def _find_broken_import() -> Iterator[str]:
    """Trinity asks for less than it imports, so a module of some other package may be missing."""
    try:
        importlib.import_module("trinity.common.config")
    except ModuleNotFoundError as error:
        yield f"trinity-rft is installed, but imports {error.name!r}, which is not there"
    except ImportError as error:
        yield f"trinity-rft is installed, but importing it fails: {error}"
