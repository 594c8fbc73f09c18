"""Marks on the Chinese pages that lag behind their English originals.

    python docs/write_translations.py                     marks the pages whose original has changed, and lists them
    python docs/write_translations.py docs/zh/tasks.md    says that this page is up to date again

The first line of a translated page names its original and the hash that it had when it was translated.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README_zh.md", *(ROOT / "docs" / "zh").glob("*.md")])
_FIRST = re.compile(r"<!-- (?P<original>\S+)(?: (?P<hash>\w+))? -->\n(?:> 注意：.*\n)?")


def original_of(page: Path) -> Path:
    return ROOT / _first_of(page)["original"]


def code_of(page: Path) -> list[str]:
    """All blocks of code, with their fences."""
    return re.findall(r"^```.*?^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def with_mark(page: Path, renewed: bool = False) -> str:
    """The page as it should be: marked if its original is not the one that was translated."""
    text = page.read_text(encoding="utf-8")
    first = _first_of(page)
    now = hashlib.sha256(original_of(page).read_bytes()).hexdigest()[:12]
    seen = now if renewed or not first["hash"] else first["hash"]
    link = os.path.relpath(original_of(page), page.parent)
    mark = "" if seen == now else f"> 注意：[英文原文]({link})在翻译之后有改动，以原文为准。\n"
    return f"<!-- {first['original']} {seen} -->\n{mark}{text[first.end() :]}"


def _first_of(page: Path) -> re.Match[str]:
    found = _FIRST.match(page.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{page}:1: expected the original and its hash, as <!-- docs/tasks.md 0123456789ab -->")
    return found


def main(renewed: list[str]) -> None:
    for page in PAGES:
        page.write_text(with_mark(page, page in [Path(name).resolve() for name in renewed]), encoding="utf-8")
        if "\n> 注意：" in page.read_text(encoding="utf-8")[:200]:
            print(f"{page.relative_to(ROOT)} lags behind {original_of(page).relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
