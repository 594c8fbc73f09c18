"""Writes the tables of docs/configuration.md from the schema: `python docs/write_tables.py`, part of `make docs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astune.config.keys import FIELDS, LEAVES
from astune.config.render import default_yaml
from astune.config.section import Located

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end -->\n"


def tables() -> str:
    """One table for each section that holds values, in the order of the schema. What stands at the top beside
    `astune`, another program's keys, has none."""
    lines = default_yaml().splitlines()[1:]
    defaults = {key: line.split("  # ")[0].partition(":")[2].strip() for key, line in zip(FIELDS, lines, strict=True)}
    sections = dict.fromkeys(key.rpartition(".")[0] for key in LEAVES if "." in key)
    return "".join(_table(section, defaults) for section in sections)


def page_with_tables(text: str) -> str:
    """`text` with everything between the two marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{tables()}{END}{after}"


def _table(section: str, defaults: Mapping[str, str]) -> str:
    lines = [f"\n### {section}\n", f"{(FIELDS[section].description or '').capitalize()}.\n"]
    lines += ["| key | default | meaning |", "| --- | --- | --- |"]
    for key in LEAVES:
        if key.rpartition(".")[0] == section:
            lines.append(f"| `{key.rpartition('.')[2]}` | `{defaults[key]}` | {_meaning(key)} |")
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _meaning(key: str) -> str:
    plugin = any(isinstance(mark, Located) and mark.kind == "plugin" for mark in FIELDS[key].metadata)
    text = (FIELDS[key].description or "").replace("|", "\\|").replace("<", "&lt;")
    return f"{text} *(plug-in)*" if plugin else text


def main() -> None:
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
