"""Where the online service keeps what: its folder, its database, the checkpoints of its versions."""

from __future__ import annotations

from pathlib import Path

from astune.config.schema import Config
from astune.monitor.run_dir import runs_folder


def service_folder(config: Config) -> Path:
    """`astune.online.folder`, else `<runs_dir>/<project>/<experiment>`; absolute."""
    folder = config.astune.online.folder
    if folder is not None:
        return Path(folder).expanduser().absolute()
    return runs_folder(config) / (config.astune.experiment_name or "online")


def store_url(config: Config) -> str:
    """`astune.online.store`, else the SQLite file `online.db` in the service's folder."""
    return config.astune.online.store or f"sqlite:///{service_folder(config) / 'online.db'}"


def versions_folder(folder: Path) -> Path:
    """Where the checkpoints of versions stand, in the folder of the service; `ModelVersion.folder` is a name in it."""
    return folder / "versions"
