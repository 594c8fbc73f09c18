"""A checkpoint is complete or it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.tinker_server.checkpoints import CheckpointPath, CheckpointStore
from astune.tinker_server.requests import RequestError
from tests.rows import each_row

PATH = CheckpointPath("m", "weights", "step 1")


def write(store: CheckpointStore, text: str, path: CheckpointPath = PATH, *, overwrite: bool = False) -> None:
    with store.writing(path, {"rank": 1}, overwrite=overwrite) as folder:
        (folder / "w").write_text(text)


def test_what_was_written_is_found_under_its_path_by_the_next_server(tmp_path: Path) -> None:
    write(CheckpointStore(tmp_path), "one")
    found = CheckpointStore(tmp_path).find(CheckpointPath.parse("tinker://m/weights/step 1"))
    assert (found.folder / "w").read_text() == "one"
    assert found.about == {"rank": 1}


@pytest.mark.fault(
    "Records and checkpoints",
    "writing a checkpoint of the tinker server fails half way",
    "no checkpoint is there, and the old one stays",
)
def test_a_write_that_fails_or_is_under_way_leaves_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(ZeroDivisionError), store.writing(PATH, {}) as folder:
        (folder / "w").write_text("half")
        with pytest.raises(RequestError, match="there is no checkpoint tinker://m/weights/step 1"):
            store.find(PATH)
        raise ZeroDivisionError
    with pytest.raises(RequestError):
        store.find(PATH)
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_overwriting_makes_another_version_and_a_failed_one_leaves_the_old(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, "one")
    first = store.find(PATH)
    with pytest.raises(RequestError, match="is there already"):
        write(store, "two")
    with pytest.raises(ZeroDivisionError), store.writing(PATH, {}, overwrite=True):
        raise ZeroDivisionError
    assert store.find(PATH) == first
    write(store, "two", overwrite=True)
    second = store.find(PATH)
    assert second.version != first.version and (second.folder / "w").read_text() == "two"


def test_deleting_takes_a_name_or_a_kind_and_name(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    write(store, "a")
    write(store, "b", CheckpointPath("m", "sampler_weights", "step 1"))
    with pytest.raises(RequestError, match="has both"):
        store.delete("m", "step 1")
    store.delete("m", "weights/step 1")
    store.delete("m", "step 1")
    assert store.of_model("m") == []
    with pytest.raises(RequestError, match="no checkpoint 'step 1'"):
        store.delete("m", "step 1")


@pytest.mark.fault("The OpenAI-compatible endpoint", "a path of the tinker server leads out of its folder", "refused")
@each_row(
    "text",
    [
        "tinker://m/weights",
        "tinker://../weights/x",
        "tinker://m/weights/..",
        "tinker://m/other/x",
        "tinker://m/weights/.x",
        "tinker://m/weights/a/b",
        "tinker://m/weights/a\\b",
        "/m/weights/x",
    ],
)
def test_paths_that_are_none_or_lead_elsewhere_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is no path like"):
        CheckpointPath.parse(text)


def test_a_model_id_cannot_lead_elsewhere(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    write(CheckpointStore(tmp_path / "other"), "safe")
    with pytest.raises(RequestError, match="there is no model"):
        store.delete("../other/m", "step 1")
