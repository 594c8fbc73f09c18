"""The places of a service: its folder, its database, its versions."""

from __future__ import annotations

from pathlib import Path

from astune.config.schema import Config
from astune.monitor.run_dir import runs_folder


def online_folder(config: Config) -> Path:
    """`astune.online.folder`, by default `<runs_dir>/<project>/<experiment>`; absolute. It may not be there yet."""
    folder = config.astune.online.folder
    if folder is not None:
        return Path(folder).expanduser().absolute()
    return runs_folder(config) / (config.astune.experiment_name or "online")


def store_url(config: Config) -> str:
    """`astune.online.store`, by default `online.db` in the folder."""
    return config.astune.online.store or f"sqlite:///{online_folder(config) / 'online.db'}"


def keep_file(folder: Path) -> Path:
    """The file that stops the deletion of versions while somebody copies them and the store that names them."""
    return folder / "keep_versions"


def versions_folder(folder: Path) -> Path:
    """The folder of the versions' checkpoints, in the service's folder; `ModelVersion.folder` is a name in it."""
    return folder / "versions"
