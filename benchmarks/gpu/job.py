"""What a part of `gpu_check.py` is given, and how it says what it found."""

from __future__ import annotations

import gc
import json
import traceback
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.parts import SKIPPED, Part

if TYPE_CHECKING:
    import torch


class CheckFailed(Exception):
    """What was found is not what it should be."""


class Job:
    """`facts` and the rows of tables are on disk as soon as they are known, so a part that is cut keeps them."""

    def __init__(self, part: Part, results: Path, *, tiny: bool) -> None:
        self.part, self.results, self.tiny = part, results, tiny
        self._found: dict[str, Any] = {"facts": {}, "tables": {}}

    @cached_property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu" if self.tiny else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        """In which sampling and training compute here."""
        import torch

        return torch.float32 if self.tiny else torch.bfloat16

    def fact(self, name: str, value: Any) -> None:
        self._found["facts"][name] = value
        self._write()

    def row(self, table: str, row: dict[str, Any]) -> None:
        self._found["tables"].setdefault(table, []).append(row)
        self._write()

    def _write(self) -> None:
        file = self.results / f"{self.part.name}.notes.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(self._found), encoding="utf-8")
        new.replace(file)

    def finish(self) -> None:
        """Wait until the device has done what it was told."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize()

    def forget_memory(self) -> None:
        """Give back what is not in use, and count anew what is taken at most."""
        gc.collect()
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def most_gib(self) -> float | str:
        """What was allocated at most since `forget_memory`."""
        import torch

        return torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else ""

    def peaks(self) -> dict[str, float]:
        """The facts that the part `machine` measured. Raises CheckFailed if it was not run."""
        file = self.results / "machine.json"
        if not file.is_file():
            raise CheckFailed("run the part `machine` first: shares are those of the peaks that it measures")
        facts: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))["facts"]
        return facts


def says_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no more memory, whatever error of ASTune's says so."""
    from astune.backbone.local.learning.accumulation import is_out_of_memory

    cause = error if isinstance(error, RuntimeError) else error.__cause__
    return isinstance(cause, RuntimeError) and is_out_of_memory(cause)


def run_part(part: Part, results: Path, *, tiny: bool) -> None:
    """Run a part in this process, which ends with 1 if it fails, and with `SKIPPED` if packages are missing."""
    job = Job(part, results, tiny=tiny)
    missing = [name for name in part.needs if find_spec(name) is None]
    if missing and not tiny:
        job.fact("not here", ", ".join(missing))
        raise SystemExit(SKIPPED)
    module, _, function = part.code.partition(":")
    try:
        getattr(import_module(module), function)(job, **part.options)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
