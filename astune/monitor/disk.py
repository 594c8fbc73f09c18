"""Files that must not be lost, and what to say where the disk does not take or give them."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from astune.errors import RunFolderError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around everything that writes `path`: an error of the disk comes as `RunFolderError` that names it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise RunFolderError(
            f"{path} cannot be written ({why}). Make room, or let the user of this process write there; what was saved "
            "before is whole: --resume goes on from a run's newest checkpoint, a later commit from the newest version"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """The file is replaced in one step, once it is on the disk: no crash leaves half of it."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file, or the list of files of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def follow_umask(folder: Path) -> None:
    """Give the weights in `folder`, which safetensors makes for its user alone, the rights that any new file has
    there."""
    new = folder / f".rights-{uuid.uuid4().hex}"
    new.touch()
    rights = stat.S_IMODE(new.stat().st_mode)
    new.unlink()
    for file in folder.glob("*.safetensors"):
        file.chmod(rights)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below the folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def wrong_file(folder: Path, expected: Mapping[str, str]) -> str | None:
    """The first file that is not there or not as `checksums` found it, and what is wrong with it; None if all are."""
    for name, checksum in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != checksum:
            return f"{name} is not as it was written (its checksum differs)"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
