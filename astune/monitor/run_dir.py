"""The folder of one run, `runs/<project>/<name>/`: what is in it and when a checkpoint counts."""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from astune.config.clock import read_clock, with_clock
from astune.config.load import LoadedConfig
from astune.config.render import changes
from astune.config.render import save_config as write_config
from astune.config.schema import Config
from astune.config.source import read_saved
from astune.errors import ConfigError, RunFolderError
from astune.monitor.disk import checksums, sync, write_whole, writing, wrong_file
from astune.support.paths import MOST_BYTES, is_name
from astune.support.run_log import close_log, open_log

COMPLETE = "COMPLETE"
"""Marker file, written last: a checkpoint without it is half-written and never taken. It holds the checksums of the
others, as `sha256sum --check COMPLETE` reads them."""


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
        self.report_path = path / "report.html"
        self._held: RunLock | None = None

    @classmethod
    def open(cls, config: Config, *, resume: bool) -> RunDir:
        """Makes the folder of a new run and saves the config in it; with `resume`, reopens the newest run of that name.
        No other process can work in it until `close`, or until this one is gone.

        Raises `ConfigError` if there is nothing to resume, if another process has the run, for options that are not
        the run's (unless `astune.allow_changes` says that they are meant), for a folder that cannot be written, and for
        a name that no folder can have.
        """
        run_dir = cls.reopen(config) if resume else cls._create(runs_folder(config), _name(config))
        if not resume:
            open_log(run_dir.path, as_json=config.astune.monitor.log_json)
        run_dir.save_config(config)
        return run_dir

    @classmethod
    def reopen(cls, config: Config, *, checkpoint: bool = True) -> RunDir:
        """The newest run of that name, as it is: nothing in it is changed. Raises as `open` does. `checkpoint=False`
        is for what goes on without one."""
        run_dir = cls.newest(runs_folder(config), _name(config), checkpoint=checkpoint)
        run_dir._lock()
        try:
            run_dir._check_changes(config)
        except BaseException:
            run_dir.close()
            raise
        open_log(run_dir.path, as_json=config.astune.monitor.log_json)
        return run_dir

    @classmethod
    def _create(cls, parent: Path, name: str) -> RunDir:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            number = max(_runs(parent, name), default=0) + 1
            while True:
                path = parent / (name if number == 1 else f"{name}-{number}")
                try:
                    path.mkdir()
                    break
                except FileExistsError:  # a run that was started at the same time, or something else of that name
                    number += 1
        except OSError as error:
            raise ConfigError(
                f"astune.runs_dir: no folder can be made for the run in {parent} ({error.strerror}); expected a place "
                "where this user may write"
            ) from error
        run_dir = cls(path)
        run_dir._lock()
        return run_dir

    @classmethod
    def newest(cls, parent: Path, name: str, *, checkpoint: bool = True) -> RunDir:
        """The run of that name with the highest number. The name is what its config.yaml says: `col-7` may be a run of
        its own and no run of `col`. Raises `ConfigError` if it cannot be resumed."""
        numbers = _runs(parent, name)
        if not numbers:
            raise ConfigError(
                f"astune.resume: there is no run {parent / name} to go on with. "
                "Start it without --resume, or set astune.project_name and astune.experiment_name to those of the run."
            )
        run_dir = cls(numbers[max(numbers)])
        if checkpoint and run_dir.latest_checkpoint() is None:
            raise ConfigError(
                f"astune.resume: {run_dir.path} has no complete checkpoint to go on from. Start again without "
                "--resume; astune.trainer.save_every and save_minutes set how often a run saves."
            )
        return run_dir

    def _lock(self) -> None:
        self._held = RunLock(self.path)

    def close(self) -> None:
        """Others may work in the folder from now on."""
        if self._held is not None:
            self._held.release()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def discard(self) -> None:
        """Removes the folder of a run that ended before it began. One that has a checkpoint is kept."""
        if self.latest_checkpoint() is None:
            close_log(self.path)
            shutil.rmtree(self.path)

    def _check_changes(self, config: Config) -> None:
        if config.astune.allow_changes or not self.config_path.is_file():
            return
        if found := changes(self.config_path, config):
            listed = "\n".join(f"  {change}" for change in found)
            raise ConfigError(
                f"astune.resume: {self.path} was begun with other options, and would become another run:\n{listed}\n"
                "Give the options that it has (its config.yaml), or add --allow-changes if the change is meant"
            )

    def save_config(self, config: Config) -> None:
        """Writes config.yaml. A resumed run's former config is kept beside it if it was another one."""
        new = self.path / "config.new.yaml"
        with writing(self.config_path):
            write_config(config, new)
            sync(new)
            latest = self.latest_checkpoint()
            if latest is not None and self.config_path.exists() and new.read_bytes() != self.config_path.read_bytes():
                former = self.path / f"config_until_{latest.name}.yaml"
                if not former.exists():  # else the run was resumed there before, and no step of it has counted since
                    shutil.copyfile(self.config_path, former)
            new.replace(self.config_path)
            sync(self.path)

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_dir / f"step_{step:06d}"

    @contextmanager
    def save_checkpoint(self, step: int) -> Iterator[Path]:
        """An empty folder to write the checkpoint into. It counts as complete, and is on the disk, once the block ends
        without error. Raises RunFolderError where the disk does not take it."""
        path = self.checkpoint_path(step)
        with writing(path):
            _remove_checkpoint(path)
            path.mkdir(parents=True)
            try:
                yield path
                _complete(path)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)  # it takes room, and nobody could use it
                raise

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(marker.parent for marker in self.checkpoints_dir.glob(f"step_*/{COMPLETE}"))

    def latest_checkpoint(self) -> Path | None:
        return next(reversed(self.checkpoints()), None)

    def take_checkpoint(self, note: Callable[[str], None]) -> Path:
        """The newest checkpoint that is as it was written. A newer one that is not is put aside, and `note` is told.
        Raises RunFolderError if there is none."""
        broken = []
        while (path := self.latest_checkpoint()) is not None:
            wrong = self.damage(path)
            if wrong is None:
                return path
            aside = path.with_name(f"broken_{path.name}")
            with writing(path):
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
            broken.append(f"{aside}: {wrong}")
            note(f"the checkpoint of {path.name} is broken and was put aside as {aside}: {wrong}")
        raise RunFolderError(
            f"{self.path}: no checkpoint is left to go on from ({'; '.join(broken)}). Start again without --resume"
        )

    def damage(self, path: Path) -> str | None:
        """The first file of a checkpoint which is not as it was written, and what is wrong; None if all are."""
        # one that an older ASTune has written names no files
        lines = (path / COMPLETE).read_text(encoding="utf-8", errors="replace").splitlines()
        return wrong_file(path, {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)})

    def check_checkpoint(self, path: Path) -> None:
        """Raises RunFolderError that names the file which is missing or not as it was written."""
        if (wrong := self.damage(path)) is not None:
            raise RunFolderError(f"the checkpoint {path} is broken: {wrong}")

    def prune_checkpoints(self, keep: int, spared_steps: Sequence[int] = ()) -> None:
        """Deletes all but the newest `keep` complete checkpoints and those of `spared_steps`, and everything
        half-written before the newest."""
        kept = self.checkpoints()[-keep:]
        spared = [*kept, *map(self.checkpoint_path, spared_steps)]
        for path in self.checkpoints_dir.glob("step_*"):
            if kept and path < kept[-1] and path not in spared:
                _remove_checkpoint(path)


def at_run_clock(loaded: LoadedConfig) -> LoadedConfig:
    """`loaded` with the clock of its run: the one that is given, else that of the run which it goes on with, else the
    time now. Raises ConfigError if there is no run to go on with."""
    if not loaded.config.astune.resume:
        return with_clock(loaded)
    former = RunDir.newest(runs_folder(loaded.config), _name(loaded.config))
    return with_clock(loaded, read_clock(former.config_path))


def runs_folder(config: Config) -> Path:
    """The folder of the project's runs, absolute: a workflow may change the working directory. Raises ConfigError for
    a name that no folder can have."""
    _check_name("project_name", config.astune.project_name)
    return Path(config.astune.runs_dir).expanduser().absolute() / config.astune.project_name


def _name(config: Config) -> str:
    name = config.astune.experiment_name or "run"
    _check_name("experiment_name", name)
    return name


def _check_name(key: str, given: str) -> None:
    parts = given.split("/") if key == "project_name" else [given]  # projects may have folders in common
    if not all(map(is_name, parts)):
        raise ConfigError(
            f"astune.{key}: got {given!r:.300}, but a folder below astune.runs_dir is called so; expected a name of up "
            f"to {MOST_BYTES} bytes without control characters, .., \\ and a / at an end"
        )


def _runs(parent: Path, name: str) -> dict[int, Path]:
    """The runs of that name by the number of their folder: `name`, `name-2` and so on, less those whose config.yaml
    has another name and those that ended before they had one."""
    found = {}
    for path in parent.glob(f"{glob.escape(name)}*"):
        match = re.fullmatch(rf"{re.escape(name)}(?:-(\d+))?", path.name)
        if match and (path / "config.yaml").is_file() and _name_of(path) in (name, None):
            found[int(match[1] or 1)] = path
    return found


def _name_of(path: Path) -> str | None:
    """The experiment's name in the config.yaml of a run; None where that cannot be read."""
    try:
        section = read_saved(path / "config.yaml").get("astune")
    except ConfigError:
        return None
    return str((section.get("experiment_name") if isinstance(section, dict) else None) or "run")


def _complete(path: Path) -> None:
    """Everything is on the disk before the marker is, and the marker before anybody is told."""
    written = checksums(path)
    for name in written:
        sync(path / name)
    for folder in {(path / name).parent for name in written} | {path}:
        sync(folder)
    write_whole(path / COMPLETE, "".join(f"{checksum}  {name}\n" for name, checksum in written.items()))
    sync(path.parent)


def _remove_checkpoint(path: Path) -> None:
    """Marker first, so that a removal that is cut off leaves a folder that no one takes for a checkpoint."""
    (path / COMPLETE).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


logger = logging.getLogger(__name__)

LOCK = "lock"
"""Empty while nobody works in the folder, else it says who does."""


class RunLock:
    """Holds the folder until `release`, or until the process is gone, however it ended: the system gives the lock back.

    Raises ConfigError that names the process that has it. Readers (`astune report`, `astune view`) need no lock.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        with writing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 10_000).decode(errors="replace").strip() or "another process"
            self._close()
            raise ConfigError(
                f"{folder} is in use by {holder}. Wait until that run has ended, or end it; without --resume a run "
                "gets a folder of its own"
            ) from None
        except OSError as error:
            logger.warning("%s cannot be locked (%s): a second run in it would not be noticed", folder, error)
        _held.add(self)
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {now}: {shlex.join(sys.argv)}\n"
        with writing(path):
            os.truncate(self._file, 0)
            os.write(self._file, holder.encode(errors="replace"))

    def release(self) -> None:
        """Safe to call twice."""
        if self._close.alive:
            # The file stays: with it removed, two processes could each lock one of that name.
            os.truncate(self._file, 0)
            self._close()

    def forget(self) -> None:
        """In a forked process, which would keep the lock when its parent is gone."""
        self._close()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in _held:
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
