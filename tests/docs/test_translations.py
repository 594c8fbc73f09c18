"""The Chinese pages: each says whether its original has changed, and has no command but the original's."""

from __future__ import annotations

import re
from pathlib import Path

from docs.write_translations import PAGES, ROOT, code_of, original_of, with_mark
from tests.rows import each_row


@each_row("page", PAGES, ids=lambda page: page.name)
def test_a_translated_page_is_marked_if_its_original_has_changed(page: Path) -> None:
    assert page.read_text("utf-8") == with_mark(page), "python docs/write_translations.py marks it"


@each_row("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_code_is_one_of_the_original(page: Path) -> None:
    originals = code_of(original_of(page))
    assert [code for code in code_of(page) if code not in originals] == []


def test_the_chinese_front_page_leads_to_each_chinese_page() -> None:
    listed = re.findall(
        r"^\d+\. \[.+?\]\((docs/zh/\w+\.md)\)", (ROOT / "README_zh.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in PAGES if page.parent.name == "zh")
