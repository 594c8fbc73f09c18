"""`astune export`: the model of a checkpoint, for others."""

from __future__ import annotations

from pathlib import Path

from astune.errors import ConfigError, MissingDependency
from astune.monitor.checkpoint_names import find_checkpoint
from astune.monitor.run_dir import RunDir
from astune.support.visible import tell


def export(run: Path | None, checkpoint: Path | None, out: Path, merged: bool, dtype: str | None) -> int:
    """Writes what the newest checkpoint of `run`, or `checkpoint`, holds into the folder `out`, a model in the
    precision `dtype` if one is given. Either may name a checkpoint as `find_checkpoint` takes it, such as RUN@best; a
    damaged one is refused."""
    found = find_checkpoint(str(checkpoint or run)) or checkpoint or _newest(run or Path())
    if not found.is_dir():
        raise ConfigError(
            f"--checkpoint {found}: no such folder; expected one as runs/project/name/checkpoints/step_000100"
        )
    try:
        from astune.backbone.local.export import export_checkpoint
    except ModuleNotFoundError as error:
        raise MissingDependency(f"export needs {error.name!r}: pip install 'astune[local]'") from error
    what = export_checkpoint(found, out, merged=merged, dtype=dtype)
    tell(f"from    {found}")
    tell(f"{what:8}{out}")
    return 0


def _newest(run: Path) -> Path:
    """The newest complete checkpoint of a run."""
    if not run.is_dir():
        raise ConfigError(f"--run {run}: no such folder; expected the folder of a run, as runs/project/name")
    found = RunDir(run).latest_checkpoint()
    if found is None:
        raise ConfigError(f"--run {run}: it has no checkpoint (astune.trainer.save_every)")
    return found
