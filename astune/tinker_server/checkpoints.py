"""tinker:// paths as folders: a checkpoint is complete or it is not there.

tinker://s1f:train:0/weights/step-4             DIR/s1f:train:0/weights/step-4             weights and optimizer
tinker://s1f:train:0/sampler_weights/step-4     DIR/s1f:train:0/sampler_weights/step-4     weights alone
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias

from astune.errors import nearest
from astune.support.paths import MOST_BYTES, inside, is_name
from astune.tinker_server.requests import RequestError, not_found

CheckpointKind: TypeAlias = Literal["weights", "sampler_weights"]
ABOUT_FILE = "tinker.json"
"""In every checkpoint: an id of its own, when it was saved, and what the client said about its model."""
SCRATCH = ".unfinished"
_FIRST = re.compile(r"[A-Za-z0-9_]")
_PATH = re.compile(r"tinker://([^/]+)/(weights|sampler_weights)/([^/]+)")


@dataclass(frozen=True)
class CheckpointPath:
    """`str(path)` is what clients know it by."""

    model_id: str
    kind: CheckpointKind
    name: str

    @classmethod
    def parse(cls, text: str) -> CheckpointPath:
        found = _PATH.fullmatch(text)
        if found is None or not all(_is_name(found[part]) for part in (1, 3)):
            raise RequestError(f"{text!r} is no path like tinker://MODEL/weights/NAME (or .../sampler_weights/NAME)")
        return cls(found[1], "weights" if found[2] == "weights" else "sampler_weights", found[3])

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class Checkpoint:
    """A saved model and where it is. One saved anew under the same name has another `version`."""

    path: CheckpointPath
    folder: Path
    version: str
    saved_at: str
    about: dict[str, Any]


class CheckpointStore:
    """The checkpoints below one folder, for one server at a time. What a killed server left unfinished is removed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._scratch = root / SCRATCH
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)

    def exists(self, path: CheckpointPath) -> bool:
        return self._folder(path).is_dir()

    def find(self, path: CheckpointPath) -> Checkpoint:
        folder = self._folder(path)
        if not folder.is_dir():
            known = [str(other.path) for other in self.of_model(path.model_id)]
            raise not_found(f"there is no checkpoint {path}.{nearest(str(path), known)}")
        saved = json.loads((folder / ABOUT_FILE).read_text())
        return Checkpoint(path, folder, saved["version"], saved["saved_at"], saved["about"])

    def of_model(self, model_id: str) -> list[Checkpoint]:
        """All of one model, the oldest first."""
        if not _is_name(model_id):
            raise not_found(f"there is no model {model_id!r:.300}")
        kinds: tuple[CheckpointKind, CheckpointKind] = ("weights", "sampler_weights")
        paths = [
            CheckpointPath(model_id, kind, folder.name)
            for kind in kinds
            for folder in inside(self._root, model_id, kind).glob("*")
        ]
        return sorted((self.find(path) for path in paths), key=lambda checkpoint: checkpoint.saved_at)

    @contextmanager
    def writing(self, path: CheckpointPath, about: dict[str, Any], *, overwrite: bool = False) -> Iterator[Path]:
        """A folder to write into, which becomes the checkpoint if nothing went wrong. Between the removal of one that
        is overwritten and the arrival of the new one there is none. Raises `RequestError` for a name that no folder
        can have, or that is taken."""
        if not _is_name(path.name):
            raise RequestError(
                f"a checkpoint cannot be called {path.name!r:.300}: up to {MOST_BYTES} bytes, the first a letter or a "
                "digit, without /, \\ and control characters"
            )
        folder = self._folder(path)
        if folder.exists() and not overwrite:
            raise RequestError(f"{path} is there already; delete it first, or save under another name")
        scratch = self._scratch / uuid.uuid4().hex
        scratch.mkdir()
        try:
            yield scratch
            saved_at = datetime.now(timezone.utc).isoformat()
            saved = {"version": scratch.name, "saved_at": saved_at, "about": about}
            (scratch / ABOUT_FILE).write_text(json.dumps(saved, indent=1))
            folder.parent.mkdir(parents=True, exist_ok=True)
            if folder.exists():
                self._remove(folder)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def delete(self, model_id: str, reference: str) -> None:
        """`reference` is KIND/NAME, or NAME where only one kind has it."""
        checkpoints = [
            each
            for each in self.of_model(model_id)
            if reference in (each.path.name, f"{each.path.kind}/{each.path.name}")
        ]
        if not checkpoints:
            raise not_found(f"model {model_id!r} has no checkpoint {reference!r}")
        if len(checkpoints) > 1:
            raise RequestError(f"weights/{reference} or sampler_weights/{reference}? Model {model_id!r} has both")
        self._remove(checkpoints[0].folder)

    def _remove(self, folder: Path) -> None:
        """At once, as anyone sees it: a folder that is half deleted is no checkpoint any more."""
        doomed = self._scratch / uuid.uuid4().hex
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def _folder(self, path: CheckpointPath) -> Path:
        """The only place where a path is made of names that clients send."""
        try:
            return inside(self._root, path.model_id, path.kind, path.name)
        except ValueError as error:
            raise RequestError(f"{path!s:.300}: {error}") from None


def _is_name(text: str) -> bool:
    """True if a folder may be called so; none of the server's own, such as `SCRATCH`, is."""
    return is_name(text) and _FIRST.match(text) is not None
