"""A checkpoint as a folder for others: without what only a run that goes on needs, and if wanted an adapter merged, or
in another precision."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from astune.context_tracker.model_dir import ADAPTER_CONFIG, ADAPTER_WEIGHTS, copy_tokenizer, resolve_base_dir
from astune.errors import ConfigError, MissingDependency, ModelError
from astune.monitor.disk import follow_umask

MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


def export_checkpoint(
    checkpoint: Path, out: Path, *, merged: bool, dtype: str | None = None
) -> Literal["model", "adapter"]:
    """Write the model of a checkpoint, or its adapter, into the new folder `out`; with `merged` an adapter becomes part
    of its base. Returns what `out` holds. Raises ConfigError where that is not new, ModelError where there is no model,
    MissingDependency where weights are to be changed and a package for that is not there; files are copied without any.

    `dtype` is the precision of a whole model, "float32" or "bfloat16". By itself that of a checkpoint of all weights
    stays as it is; merged weights, which are computed in float32, get that of the base model's own files.
    """
    adapter = (checkpoint / ADAPTER_CONFIG).is_file()
    if not adapter and not (checkpoint / "config.json").is_file():
        files = [*checkpoint.glob(f"*/{ADAPTER_CONFIG}"), *checkpoint.glob("*/config.json")]
        models = ", ".join(sorted(file.parent.name for file in files))
        advice = f". It has several models ({models}); name the folder of one" if models else ""
        raise ModelError(f"{checkpoint} is no checkpoint: it has neither config.json nor {ADAPTER_CONFIG}{advice}")
    if adapter and not merged and dtype is not None:
        raise ConfigError(f"--dtype {dtype}: {checkpoint} holds an adapter, which stays as it is; add --merged")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: it is there already; name a folder that is new, or empty")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        folder = Path(place) / out.name
        folder.mkdir()
        copy_tokenizer(checkpoint, folder)
        if dtype is not None or (adapter and merged):
            try:
                _change(checkpoint, folder, adapter, dtype)
            except ModuleNotFoundError as error:
                raise MissingDependency(f"export needs {error.name!r}: pip install 'astune[local]'") from error
        else:
            _copy(checkpoint, folder, ADAPTER_FILES if adapter else MODEL_FILES)
        folder.replace(out)
    return "adapter" if adapter and not merged else "model"


def _copy(checkpoint: Path, folder: Path, patterns: tuple[str, ...]) -> None:
    files = [file for pattern in patterns for file in checkpoint.glob(pattern)]
    if not any(file.suffix == ".safetensors" for file in files):
        raise ModelError(f"{checkpoint} is no checkpoint: it has no weights ({patterns[-1]})")
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _change(checkpoint: Path, folder: Path, adapter: bool, dtype: str | None) -> None:
    """Write the whole model, with the adapter if the checkpoint holds one, in the precision that `export_checkpoint`
    says. Torch and the models, which take seconds to import, are for this alone."""
    import torch

    from astune.backbone.local.model.adapters import merge
    from astune.backbone.local.model.model import DTYPES, read_weights

    if adapter:
        base = resolve_base_dir(str(checkpoint))
        own = json.loads((base / "config.json").read_text(encoding="utf-8"))
        name = dtype or str(own.get("dtype") or own.get("torch_dtype") or "float32")
        model = merge(read_weights(base), checkpoint).to(getattr(torch, name, torch.float32))
    else:
        model = read_weights(checkpoint, DTYPES[str(dtype)])
    model.save_pretrained(folder)
    follow_umask(folder)
