"""The folders of versions: written beside, then renamed, so that one is there whole or not at all.

versions/v000007-3f2a91c4          a version; its row in the database names it
versions/.new-...                  on the way; whoever trains next deletes what is left of one
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from astune.errors import RunFolderError
from astune.monitor.disk import checksums, sync, write_whole, writing, wrong_file
from astune.monitor.run_dir import COMPLETE
from astune.online.store.versions import ModelVersion

NEW = ".new-"
"""Begins the names of folders that are no version yet."""


@contextmanager
def new_folder(versions: Path) -> Iterator[Path]:
    """An empty folder to write a checkpoint into. It is gone at the end of the block, unless it was made a version."""
    folder = versions / f"{NEW}{uuid.uuid4().hex}"
    with writing(folder):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def seal(folder: Path) -> str:
    """Write the checksums of its files and wait until all is on the disk. The digest of the checkpoint."""
    with writing(folder):
        written = checksums(folder)
        text = "".join(f"{checksum}  {name}\n" for name, checksum in written.items())
        for name in written:
            sync(folder / name)
        for below in folder.rglob("*"):
            if below.is_dir():
                sync(below)
        write_whole(folder / COMPLETE, text)
    return hashlib.sha256(text.encode()).hexdigest()


def put_in_place(folder: Path, number: int, sha256: str) -> str:
    """Give a sealed checkpoint its name, which it returns. One of the same name has the same files: it was made by a
    trainer that was killed before it could say so."""
    name = f"v{number:06d}-{sha256[:8]}"
    target = folder.parent / name
    with writing(target):
        if target.is_dir():
            check(target, sha256)
        else:
            folder.rename(target)
        sync(folder.parent)
    return name


def check(folder: Path, sha256: str | None) -> None:
    """Raises RunFolderError that names the file which is missing or not as it was written."""
    try:
        text = (folder / COMPLETE).read_text(encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{folder} is no checkpoint of a version: {error.strerror or error}") from error
    if sha256 is not None and hashlib.sha256(text.encode()).hexdigest() != sha256:
        raise RunFolderError(f"{folder / COMPLETE} is not as it was written (its checksum differs)")
    lines = (line.partition("  ") for line in text.splitlines())
    if (wrong := wrong_file(folder, {name: checksum for checksum, _, name in lines})) is not None:
        raise RunFolderError(f"the checkpoint {folder} is broken: {wrong}")


def check_version(versions: Path, version: ModelVersion) -> None:
    """Raises RunFolderError for a version whose files are gone or not as they were written."""
    if version.pruned is not None:
        raise RunFolderError(f"v{version.number} was pruned: its files are gone")
    if version.folder is not None:
        check(versions / version.folder, version.sha256)


def clean(versions: Path, kept: Collection[str | None]) -> list[str]:
    """Delete everything in the folder but `kept`: unfinished checkpoints, and whole ones that no row names. Return the
    deleted names. Only the holder of the lease of training may call this."""
    found = [path for path in versions.glob("*") if path.is_dir() and path.name not in kept]
    for path in found:
        remove(path)
    return sorted(path.name for path in found)


def remove(path: Path) -> None:
    """Delete a folder of versions, if it is there."""
    aside = path if path.name.startswith(NEW) else path.with_name(f"{NEW}{uuid.uuid4().hex}")
    if aside != path and path.is_dir():
        path.rename(aside)  # so that no half of it has the name of a version
    shutil.rmtree(aside, ignore_errors=True)
