"""The folder of one run, `runs/<project>/<name>/`: what is in it and when a checkpoint counts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from astune.config.render import save_config
from astune.config.schema import Config
from astune.errors import ConfigError
from astune.paths import MOST_BYTES, is_name

COMPLETE = "COMPLETE"
"""Marker file, written last: a checkpoint without it is half-written and never taken."""


class RunDir:
    """The paths of a run. Nothing that an earlier run left is ever written over.

    run_dir = RunDir.open(config, resume=False)          # runs/math/demo, or demo-2 if demo exists
    with run_dir.save_checkpoint(step=10) as folder:     # checkpoints/step_000010
        learner.save(folder)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"
        self.metrics_path = path / "metrics.jsonl"
        self.episodes_dir = path / "episodes"
        self.checkpoints_dir = path / "checkpoints"
        self.tensorboard_dir = path / "tensorboard"
        self.report_path = path / "report.html"

    @classmethod
    def open(cls, config: Config, *, resume: bool) -> RunDir:
        """Makes the folder of a new run and saves the config in it; with `resume`, reopens the newest run of that name.

        Raises `ConfigError` if there is nothing to resume, or a name is none that a folder can have.
        """
        settings = config.astune
        name = settings.experiment_name or "run"
        for key, given in (("project_name", settings.project_name), ("experiment_name", name)):
            if not is_name(given):
                raise ConfigError(
                    f"astune.{key}: got {given!r:.300}, but a folder is called so; expected one name of up to "
                    f"{MOST_BYTES} bytes, without / and \\ (where runs are kept is astune.runs_dir)"
                )
        parent = Path(settings.runs_dir) / settings.project_name
        run_dir = cls.newest(parent, name) if resume else cls._create(parent, name)
        run_dir._save_config(config)
        return run_dir

    @classmethod
    def _create(cls, parent: Path, name: str) -> RunDir:
        parent.mkdir(parents=True, exist_ok=True)
        number, path = 1, parent / name
        while True:
            try:
                path.mkdir()
                return cls(path)
            except FileExistsError:
                number += 1
                path = parent / f"{name}-{number}"

    @classmethod
    def newest(cls, parent: Path, name: str) -> RunDir:
        """The run of that name with the highest number. Raises `ConfigError` if it cannot be resumed."""
        numbers = {}
        for path in parent.glob(f"{name}*"):
            match = re.fullmatch(rf"{re.escape(name)}(?:-(\d+))?", path.name)
            if match and path.is_dir():
                numbers[int(match[1] or 1)] = path
        if not numbers:
            raise ConfigError(
                f"astune.resume: there is no run {parent / name} to go on with. "
                "Start it without --resume, or set astune.project_name and astune.experiment_name to those of the run."
            )
        run_dir = cls(numbers[max(numbers)])
        if run_dir.latest_checkpoint() is None:
            raise ConfigError(
                f"astune.resume: {run_dir.path} has no complete checkpoint to go on from. "
                "Start again without --resume; astune.trainer.save_every sets how often a run saves."
            )
        return run_dir

    def discard(self) -> None:
        """Removes the folder of a run that ended before it began. One that has a checkpoint is kept."""
        if self.latest_checkpoint() is None:
            shutil.rmtree(self.path)

    def _save_config(self, config: Config) -> None:
        """Writes config.yaml. A resumed run's former config is kept beside it if it was another one."""
        new = self.path / "config.new.yaml"
        save_config(config, new)
        latest = self.latest_checkpoint()
        if latest is not None and self.config_path.exists() and new.read_bytes() != self.config_path.read_bytes():
            self.config_path.rename(self.path / f"config_until_{latest.name}.yaml")
        new.replace(self.config_path)

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_dir / f"step_{step:06d}"

    @contextmanager
    def save_checkpoint(self, step: int) -> Iterator[Path]:
        """An empty folder to write the checkpoint into. It counts as complete once the block ends without error."""
        path = self.checkpoint_path(step)
        _remove_checkpoint(path)
        path.mkdir(parents=True)
        yield path
        (path / COMPLETE).touch()

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(marker.parent for marker in self.checkpoints_dir.glob(f"step_*/{COMPLETE}"))

    def latest_checkpoint(self) -> Path | None:
        return next(reversed(self.checkpoints()), None)

    def prune_checkpoints(self, keep: int) -> None:
        """Deletes all but the newest `keep` complete checkpoints, and everything half-written before the newest."""
        kept = self.checkpoints()[-keep:]
        for path in self.checkpoints_dir.glob("step_*"):
            if kept and path < kept[-1] and path not in kept:
                _remove_checkpoint(path)


def _remove_checkpoint(path: Path) -> None:
    """Marker first, so that a removal that is cut off leaves a folder that no one takes for a checkpoint."""
    (path / COMPLETE).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)
