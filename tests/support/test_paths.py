from __future__ import annotations

from pathlib import Path

import pytest

from astune.support.paths import inside, is_name
from tests.rows import each_row


@each_row(
    "name",
    ["", ".", "..", "a/b", "/etc", "../x", "a\\b", "a\0b", "a\nb", "\x1b[2J", "\ud800", "a" * 201, "é" * 101],
)
def test_what_is_no_name_of_one_file_makes_no_path(tmp_path: Path, name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ValueError, match="leads out of its folder, or no file can be called so"):
        inside(tmp_path, name)
    with pytest.raises(ValueError):
        inside(tmp_path, "fine", name)


def test_names_make_paths_below_their_folder(tmp_path: Path) -> None:
    assert inside(tmp_path, "step 1", ".x", "Größe") == tmp_path / "step 1" / ".x" / "Größe"


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError):
        inside(tmp_path / "in", "link", "x")
