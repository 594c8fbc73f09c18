"""A copy of a service: its store, and the checkpoints of the versions that the store names.

backup.json           what is in the folder, with checksums; written last, so a folder without it is no backup
online.db             the store on SQLite; `online.dump`, by pg_dump, on PostgreSQL
versions/v000007-...  a version
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from astune.errors import ConfigError, MissingDependency, RunFolderError, StoreError
from astune.monitor.disk import checksums, sync, write_whole, writing, wrong_file
from astune.online.place import keep_file, versions_folder
from astune.online.store import versions
from astune.online.training.checkpoint import check
from astune.store.database import Database, copy_sqlite, file_of, find_revision
from astune.version import __version__

CONTENTS, SQLITE, DUMP, VERSIONS = "backup.json", "online.db", "online.dump", "versions"


@dataclass(frozen=True)
class Backup:
    """What a backup has."""

    made: float
    astune: str
    store: str
    """Name of its file."""
    sha256: str
    """Checksum of that file."""
    versions: Mapping[str, str]
    """Checksum of each version's checkpoint, by the name of its folder."""
    gone: Sequence[str]
    """Versions whose folders had been deleted before: as v3."""


def make_backup(database: Database, folder: Path, to: Path, now: float) -> Backup:
    """Copy the store and the versions of the service in `folder` into the new folder `to`. May run beside everything
    else: it has every version that its store names.

    Raises:
        ConfigError: `to` is there already, with something in it.
        StoreError: the store cannot be copied.
        RunFolderError: a version is not as it was written, or `to` cannot be written.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {to}: it is there already; a backup is a folder of its own")
    with writing(to), keep_versions(folder):
        (to / VERSIONS).mkdir(parents=True, mode=0o700)
        store = copy_store(database, to)
        copied, gone = copy_versions(database, folder, to)
        found = Backup(now, __version__, store.name, checksums(to)[store.name], copied, gone)
        write_whole(to / CONTENTS, json.dumps(asdict(found), indent=1) + "\n")
    return found


@contextmanager
def keep_versions(folder: Path) -> Iterator[None]:
    """No version is deleted within the block. A file that somebody else put there stays."""
    file = keep_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        yield
        return
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def copy_store(database: Database, to: Path) -> Path:
    """Copy the store as it is at one moment: first of all, as a row names a folder that is there. The copy."""
    if database.is_sqlite:
        with database.reading() as connection:
            file = file_of(connection)
        copy_sqlite(file, to / SQLITE)
        sync(to / SQLITE)
        return to / SQLITE
    _run_postgresql(database, "pg_dump", "--format=custom", "--no-owner", "--file", str(to / DUMP))
    return to / DUMP


def copy_versions(database: Database, folder: Path, to: Path) -> tuple[dict[str, str], list[str]]:
    """Copy the checkpoints that the store names by now, and check the copies: at least those that a copy of it from
    before names. Their checksums by name, and the versions whose folders are gone. Raises RunFolderError for one that
    is not as it was written."""
    copied: dict[str, str] = {}
    gone: list[str] = []
    with database.reading() as connection:
        rows = [each for each in versions.every(connection) if each.folder is not None]
    for version in rows:
        source, target = versions_folder(folder) / str(version.folder), to / VERSIONS / str(version.folder)
        if not _copy_folder(source, target):
            gone.append(f"v{version.number}")
            continue
        check(target, version.sha256)
        copied[target.name] = str(version.sha256)
    return copied, gone


def _copy_folder(source: Path, target: Path) -> bool:
    """Tell whether the folder was there to the end: a trainer may have begun to delete it before."""
    try:
        shutil.copytree(source, target)
    except (OSError, shutil.Error):
        if source.is_dir():
            raise
        shutil.rmtree(target, ignore_errors=True)
        return False
    for path in target.rglob("*"):
        sync(path)
    return True


def restore_backup(source: Path, database: Database, folder: Path) -> Backup:
    """Put a backup in the place of a service that is not there yet: `database` is empty, and `folder` has no versions.
    Everything is checked before anything is written.

    Raises:
        ConfigError: `source` is no whole backup, or is of the other kind of database.
        StoreError: there is a store already.
        RunFolderError: a file is not as it was written, or there are versions already.
    """
    found = read_backup(source)
    there = versions_folder(folder)
    if (found.store == SQLITE) != database.is_sqlite:
        kind = "SQLite" if found.store == SQLITE else "PostgreSQL"
        raise ConfigError(f"--from {source}: it is of {kind}; astune.online.store names {database.address}")
    if there.is_dir() and any(there.iterdir()):
        raise RunFolderError(f"{there} has versions already: nothing is written over them. Move them away")
    is_there = Path(str(database.url.database)).exists() if database.is_sqlite else find_revision(database) is not None
    if is_there:
        raise StoreError(f"there is a store at {database.address} already: nothing is written over it. Move it away")
    for name, sha256 in found.versions.items():
        check(source / VERSIONS / name, sha256)
    with writing(there):
        there.mkdir(parents=True, exist_ok=True)
        for name in found.versions:
            _copy_folder(source / VERSIONS / name, there / name)
        if database.is_sqlite:
            file = Path(str(database.url.database))
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_name(f"{file.name}.restored")
            shutil.copyfile(source / SQLITE, new)
            sync(new)
            os.replace(new, file)
    if not database.is_sqlite:
        _run_postgresql(
            database, "pg_restore", "--no-owner", "--exit-on-error", "--single-transaction", str(source / DUMP)
        )
    return found


def read_backup(source: Path) -> Backup:
    """Read what a backup has, and check its store. Raises as `restore_backup`."""
    try:
        found = Backup(**json.loads((source / CONTENTS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"--from {source}: it is no whole backup, as {CONTENTS} is not there or damaged") from error
    if (wrong := wrong_file(source, {found.store: found.sha256})) is not None:
        raise RunFolderError(f"the backup {source} is broken: {wrong}")
    return found


def _run_postgresql(database: Database, program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs. The password goes by its environment."""
    url = database.url.set(drivername="postgresql")
    environment = dict(os.environ) | ({} if url.password is None else {"PGPASSWORD": str(url.password)})
    address = url.set(password=None).render_as_string()
    command = [program, *arguments, "--dbname", address]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingDependency(
            f"the store is PostgreSQL, and its program {program} is not found: install PostgreSQL's clients, of "
            "the server's version or newer"
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise StoreError(f"{program} of {database.address} failed: {said:.500}")
