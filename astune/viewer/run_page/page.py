"""`view.html`: one page that holds every episode of a run, to sort, filter and read down to the single token.

    write_view(Path("runs/math_agent/demo"), Path("view.html"))

The page is a head that all of the table is made of, and blocks of whole episodes that are unpacked when one is opened.
Head and blocks are gzip in base64: text of tasks and agents never stands in the page as text, so it can neither end a
script nor become markup; and the page's own policy (Content-Security-Policy) lets nothing run but its own script and
nothing be fetched. Episodes are written as they are read, one step in memory at a time.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any, TextIO

from astune.errors import ConfigError
from astune.monitor import RunDir
from astune.support.file_kinds import other_kind
from astune.viewer.content_policy import content_policy
from astune.viewer.run_config import config_of, pieces_of
from astune.viewer.run_page.episode_data import TokenTexts, episode_data
from astune.viewer.run_page.head import head_data
from astune.viewer.run_page.run_index import IndexedEpisode, index_run, read_episode
from astune.viewer.run_page.step_credit import Credited, Estimator, credit_step

PAGE = Path(__file__).parents[1] / "page" / "view"
SCRIPTS = ("dom", "data", "state", "charts", "filters", "table", "tokens", "forest", "chat", "episode", "keys", "main")
"""The page's script, one file after the other in one scope."""
STYLES = ("base", "run", "episode")
BLOCK_BYTES = 200_000
"""About what one block unpacks: small enough to open at once, large enough to pack well."""


@dataclass
class Block:
    """Episodes that are packed together, all of one step of one phase."""

    number: int
    entries: list[IndexedEpisode] = field(default_factory=list)


def write_view(path: Path, out: Path) -> Path:
    """Writes the page of the run in the folder `path`, finished or not, whole or damaged, and returns `out`."""
    check_run(path)
    run = RunDir(path)
    config = config_of(run)
    index = index_run(run)
    estimator = Estimator.of(config)
    pieces = pieces_of(run, config)
    texts = None if pieces is None else TokenTexts(pieces)
    blocks = _blocks(index.entries)
    places = {id(entry): block.number for block in blocks for entry in block.entries}
    head = head_data(path, config, index, [places[id(entry)] for entry in index.entries], estimator.name, texts is None)
    new = out.with_name(out.name + ".new")
    with new.open("w", encoding="utf-8", newline="\n") as file:
        file.write(_top(str(head["title"]), pack(head)))
        for block, credited in _credit_blocks(blocks, estimator):
            _write_block(file, block, credited, texts)
        file.write("</body>\n</html>\n")
    new.replace(out)
    return out


def check_run(path: Path) -> None:
    """Raises ConfigError for a folder that is no run, with the runs nearby."""
    if (path / "config.yaml").is_file():
        return
    if wrong := other_kind(path, "the folder of a run"):
        raise ConfigError(wrong)
    there = "this is no folder" if path.exists() else "there is no such folder"
    what = "this folder has no config.yaml" if path.is_dir() else there
    found = next((runs for runs in (_runs_below(place) for place in (path, *path.absolute().parents[:2])) if runs), [])
    known = f" Runs nearby: {', '.join(map(str, found[:8]))}." if found else ""
    raise ConfigError(f"{path}: {what}; expected the folder of a run, as runs/project/name.{known}")


def _runs_below(folder: Path) -> list[Path]:
    """Runs up to three folders down, those of the newest first."""
    try:
        found = {file.parent for depth in ("*", "*/*", "*/*/*") for file in folder.glob(f"{depth}/config.yaml")}
        runs = [run for run in found if (run / "episodes").is_dir() or (run / "metrics.jsonl").is_file()]
        return sorted(runs, key=lambda run: -run.stat().st_mtime)
    except OSError:  # a folder that somebody removes meanwhile, or that is closed to this user
        return []


def _blocks(entries: Sequence[IndexedEpisode]) -> list[Block]:
    """Every entry in one block, by phase and step, attempts at the same task side by side."""
    blocks: list[Block] = []
    order = sorted(entries, key=lambda entry: (entry.phase, entry.head.step, entry.head.task_id, entry.head.line))
    for _, members in groupby(order, key=_unit):
        size = BLOCK_BYTES
        for entry in members:
            if size + entry.size > BLOCK_BYTES:
                blocks.append(Block(len(blocks)))
                size = 0
            blocks[-1].entries.append(entry)
            size += entry.size
    return blocks


def _unit(entry: IndexedEpisode) -> tuple[str, int]:
    """Episodes with an equal one are credited together."""
    return entry.phase, entry.head.step


def _credit_blocks(blocks: Sequence[Block], estimator: Estimator) -> Iterator[tuple[Block, list[Credited]]]:
    """Yield the blocks in order with the credit of their episodes; held-out episodes have none."""
    for (phase, _), members in groupby(blocks, key=lambda block: _unit(block.entries[0])):
        unit = list(members)
        if phase.startswith("eval/"):
            yield from ((block, [Credited() for _ in block.entries]) for block in unit)
            continue
        episodes = [read_episode(entry).episode for block in unit for entry in block.entries]
        credited = iter(credit_step(episodes, estimator))
        del episodes
        yield from ((block, [next(credited) for _ in block.entries]) for block in unit)


def _write_block(file: TextIO, block: Block, credited: Sequence[Credited], texts: TokenTexts | None) -> None:
    vocabulary: dict[int, str] = {}
    episodes = {}
    for entry, credit in zip(block.entries, credited, strict=True):
        data, known = episode_data(read_episode(entry), credit, texts)
        episodes[f"{entry.phase}:{entry.head.line}"] = data
        vocabulary |= known
    packed = pack({"texts": None if texts is None else vocabulary, "episodes": episodes})
    file.write(f'<script type="text/plain" id="block-{block.number}">{packed}</script>\n')


def pack(value: Any) -> str:
    """JSON, gzipped, in base64."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0)).decode("ascii")


def _top(title: str, head: str) -> str:
    """The page up to its first block."""
    style, script = _inline()
    page = Template((PAGE / "view.html").read_text(encoding="utf-8"))
    return page.substitute(title=escape(title), style=style, script=script, policy=escape(view_policy()), head=head)


def view_policy() -> str:
    """The page's Content-Security-Policy, the same for every run."""
    style, script = _inline()
    return content_policy([script], [style])


def _inline() -> tuple[str, str]:
    """The page's style and script."""
    style = "\n".join((PAGE / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    script = "\n".join((PAGE / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return style, f'"use strict";\n(() => {{\n{script}\n}})();\n'
