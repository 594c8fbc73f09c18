"""Write what the schema of the configuration says: `default_config/default.yaml`, the JSON schema and the two
conversion files beside it, and the tables of docs/configuration.md and docs/trinity.md. Tables of other pages come from
the words of the code, and `llms.txt` from the README's list of pages.

`python docs/write_tables.py` is part of `make docs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from astune.cli.endings import MEANINGS
from astune.cli.json_schema import FIRST_LINE, SCHEMA_FILE, schema_text
from astune.config.keys import FIELDS, LEAVES, fates, value_at
from astune.config.render import default_yaml
from astune.config.schema import Config
from astune.config.section import ON_TRINITY, Fate, Located, OnTrinity, OnVerl
from astune.environment.protocol import ERRORS
from astune.monitor.words import FORKS, LEFT_OUT, METRICS

ROOT = Path(__file__).resolve().parents[1]
END = "<!-- end -->\n"
LLMS_TXT = """\
# ASTune

> ASTune tunes agents, of AgentScope or any that call OpenAI's API: their weights by reinforcement learning, their
> prompts, and the choice of their model, with the gain measured on held-out tasks.

It takes tasks, the agent as it is, and a judge; a small model ships with it, so that all of it runs on a laptop.

## Start

- [README](README.md): what it is, the first agent in 30 lines
- [Skill](skills/astune/SKILL.md): for a coding agent that tunes somebody's agent, from `astune init` to the report

## Pages

{pages}

## Optional

- [AGENTS](AGENTS.md): for coding agents that work in this repository
- [Contributing](CONTRIBUTING.md): set-up, commands, rings, style, recipes
- [Changelog](CHANGELOG.md): what has changed
"""
"""The frame of `llms.txt`."""


def generate_files() -> Iterator[tuple[Path, str]]:
    """Give the path and the text of each file that is written, whole or in part."""
    settings, docs = ROOT / "default_config", ROOT / "docs"
    yield settings / "default.yaml", FIRST_LINE.format(file=SCHEMA_FILE) + default_yaml()
    yield settings / SCHEMA_FILE, schema_text()
    yield settings / "config_auto_convertion_trinity.json", format_fates(OnTrinity)
    yield settings / "config_auto_convertion_verl.json", format_fates(OnVerl)
    yield fill_page(docs / "configuration.md", {"tables": format_sections()})
    of_runs = {
        "exits": format_rows(("exit code", "the command"), MEANINGS.items()),
        "reasons": format_table("reason", "why the tokens carry no loss", LEFT_OUT),
        "pictures": format_table("metric", "what it says", METRICS),
    }
    yield fill_page(docs / "runs.md", of_runs)
    yield fill_page(docs / "context_tracker.md", {"forks": format_table("cause", "what happened", FORKS)})
    errors = [(status, f"`{code}`", meaning) for code, (status, meaning) in ERRORS.items()]
    yield fill_page(docs / "environment_service.md", {"errors": format_rows(("status", "code", "meaning"), errors)})
    trinity = fates(OnTrinity)
    refused = {key: fate.unsupported for key, fate in trinity.items() if fate.unsupported}
    tinker = {key: fate.tinker for key, fate in trinity.items() if fate.tinker}
    tables = {"refused": format_table("key", "why", refused), "tinker": format_table("key", "why", tinker)}
    yield fill_page(docs / "trinity.md", tables)
    yield ROOT / "llms.txt", format_llms_txt((ROOT / "README.md").read_text(encoding="utf-8"))


def fill_page(path: Path, parts: Mapping[str, str]) -> tuple[Path, str]:
    """Put each part between its mark, as `<!-- tables -->`, and the next `<!-- end -->`."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = before + mark + part + END + rest.partition(END)[2]
    return path, text


def format_llms_txt(readme: str) -> str:
    """The pages for language models, as https://llmstxt.org has it: title, summary, and a line for each."""
    pages = re.findall(r"^\d+\. (\[.+?\]\(docs/\w+\.md\): .+)$", readme, re.MULTILINE)
    return LLMS_TXT.format(pages="\n".join(f"- {page}" for page in pages))


def format_fates(kind: type[Fate]) -> str:
    """One line for each key: what becomes of it on an engine. `unless` is the value that is taken of a key that is
    refused."""
    lines = []
    for key, fate in fates(kind).items():
        row = {name: value for name, value in asdict(fate).items() if value and value != ON_TRINITY}
        if fate.unsupported:
            row["unless"] = value_at(Config(), key)
        lines.append(f"  {json.dumps(key)}: {json.dumps(row)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def format_table(first: str, second: str, rows: Mapping[str, str]) -> str:
    return format_rows((first, second), [(f"`{name}`", text) for name, text in rows.items()])


def format_rows(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def format_sections() -> str:
    """One table for each section that holds values, in the order of the schema. Another program's keys, which stand at
    the top beside `astune`, have none."""
    lines = default_yaml().splitlines()[1:]
    defaults = {key: line.split("  # ")[0].partition(":")[2].strip() for key, line in zip(FIELDS, lines, strict=True)}
    sections = dict.fromkeys(key.rpartition(".")[0] for key in LEAVES if "." in key)
    return "".join(format_section(section, defaults) for section in sections)


def format_section(section: str, defaults: Mapping[str, str]) -> str:
    lines = [f"\n### {section}\n", f"{(FIELDS[section].description or '').capitalize()}.\n"]
    lines += ["| key | default | meaning |", "| --- | --- | --- |"]
    for key in LEAVES:
        if key.rpartition(".")[0] == section:
            lines.append(f"| `{key.rpartition('.')[2]}` | `{defaults[key]}` | {format_meaning(key)} |")
    return "\n".join(lines) + "\n"


def format_meaning(key: str) -> str:
    plugin = any(isinstance(mark, Located) and mark.kind == "plugin" for mark in FIELDS[key].metadata)
    text = (FIELDS[key].description or "").replace("|", "\\|").replace("<", "&lt;")
    return f"{text} *(plug-in)*" if plugin else text


def main() -> None:
    for path, text in generate_files():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
