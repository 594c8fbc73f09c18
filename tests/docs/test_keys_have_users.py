"""Every key of the configuration has a user: a file that ships or a page sets it, or a page says what it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from astune.config.keys import LEAVES

ROOT = Path(__file__).parents[2]
GENERATED = re.compile(r"<!-- \w+ -->.*?<!-- end -->", re.DOTALL)
YAML_BLOCK = re.compile(r"```ya?ml[^\n]*\n(.*?)```", re.DOTALL)
ON_THE_COMMAND_LINE = re.compile(r"(astune(?:\.\w+)+)=(\{[^`\n]*\})?")
FLAGS = {"resume": "--resume", "allow_changes": "--allow-changes"}
FLAGS |= {f"debug.{name}": f"--{name.replace('_', '-')}" for name in ("model", "split", "index", "filter", "step")}
FLAGS |= {"debug.tasks": "--task", "debug.commands": "--commands", "debug.with_update": "--with-update"}


def written_by_hand() -> dict[Path, str]:
    """The pages, the tutorials and what else ships, without what is generated from the schema."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "tutorial").rglob("*.md")]
    files = [*(ROOT / "tutorial").rglob("*.yaml"), *(ROOT / "benchmarks").rglob("*.yaml")]
    files += [*(ROOT / "tutorial").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    files += [path for path in (ROOT / "default_config").rglob("*.yaml") if path.name != "default.yaml"]
    return {path: GENERATED.sub("", path.read_text(encoding="utf-8")) for path in [*pages, *files]}


def dotted(tree: Any, prefix: str) -> Iterator[str]:
    for name, value in tree.items() if isinstance(tree, dict) else ():
        yield f"{prefix}{name}"
        yield from dotted(value, f"{prefix}{name}.")


def parse(text: str) -> list[Any]:
    """The trees of a block; none where a page shows what is wrong, or code fills one in."""
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return []


def keys_set() -> set[str]:
    """The keys to which a file or a block gives a value."""
    found: set[str] = set()
    for path, text in written_by_hand().items():
        blocks = {".md": YAML_BLOCK.findall(text), ".yaml": [text]}.get(path.suffix, [])
        found.update(*(dotted(tree, "") for block in blocks for tree in parse(block)))
        for key, section in ON_THE_COMMAND_LINE.findall(text):
            found.update([key], *(dotted(tree, f"{key}.") for tree in parse(section)))
    return found


def is_explained(key: str, pages: str) -> bool:
    """Tell whether a page has the key between backticks, whole or by its last names, or the flag that sets it."""
    short, name = key.removeprefix("astune."), re.escape(key.rpartition(".")[2])
    flag = FLAGS.get(short)
    if flag is not None and re.search(rf"{flag}\b", pages):
        return True
    return re.search(rf"`(?:[\w.]+\.)?{name}(?:[:=] ?[^`\n]*)?`", pages) is not None


def test_every_key_is_set_somewhere_or_explained_on_a_page() -> None:
    given, pages = keys_set(), "\n".join(text for path, text in written_by_hand().items() if path.suffix == ".md")
    keys = [key for key in LEAVES if key.startswith("astune.") and key not in given]
    assert [key for key in keys if not is_explained(key, pages)] == []
    assert len(keys) < len(LEAVES) / 2
