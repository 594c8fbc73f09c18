"""The page of a run: `view.html` holds every episode, to sort, filter and read down to the single token; `report.html`
is the same page with a story before it, and holds the episodes that the story shows.

    write_view(Path("runs/math_agent/demo"), Path("view.html"))
    write_report(Path("runs/math_agent/demo"))

The page is a head that all of the table is made of, and blocks of whole episodes that are unpacked when one is opened.
Head and blocks are gzip in base64, and the story is escaped: text of tasks and agents can neither end a script nor
become markup; and the page's own policy (Content-Security-Policy) lets nothing run but its own script and nothing be
fetched. Episodes are written as they are read, one step in memory at a time.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from astune.errors import ConfigError
from astune.monitor import RunDir
from astune.monitor.disk import writing
from astune.support.file_kinds import other_kind
from astune.viewer.episode_data import TokenTexts, episode_data
from astune.viewer.head import head_data
from astune.viewer.run_config import config_of, pieces_of
from astune.viewer.run_index import IndexedEpisode, RunIndex, index_run, read_episode
from astune.viewer.step_credit import Credited, Estimator, credit_step
from astune.viewer.story import Story, tell_run


def content_policy(scripts: Sequence[str] = (), styles: Sequence[str] = (), *, asks: bool = False) -> str:
    """A Content-Security-Policy for these inline scripts and styles, given as they stand between their tags. `asks`:
    the page may ask the server that it came from, by script and form, and no other.

    A browser may run the scripts and use the styles that a page came with, and nothing else: text of tasks and agents
    can then neither run nor make the browser fetch anything, even where it got into the page as markup. A `style`
    attribute, as the length of a bar, is let through: it can load nothing.
    """
    sources = {
        "default-src": ["'none'"],
        "script-src": [_hash(text) for text in scripts] or ["'none'"],
        "style-src": [_hash(text) for text in styles],
        "style-src-attr": ["'unsafe-inline'"],
        "img-src": ["data:"],
        **({"connect-src": ["'self'"]} if asks else {}),
        "base-uri": ["'none'"],
        "form-action": ["'self'" if asks else "'none'"],
    }
    return "; ".join(f"{name} {' '.join(values)}" for name, values in sources.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


PAGE = Path(__file__).parent / "page"
SCRIPTS = (
    *("dom", "data", "state", "charts", "candidates", "filters", "table", "tokens", "forest", "message", "chat"),
    *("episode", "theme", "keys", "main"),
)
"""The page's script, one file after the other in one scope."""
STYLES = ("base", "run", "episode", "story")
BLOCK_BYTES = 200_000
"""About what one block unpacks: small enough to open at once, large enough to pack well."""


@dataclass
class Block:
    """Episodes that are packed together, all of one step of one phase."""

    number: int
    entries: list[IndexedEpisode] = field(default_factory=list)


def write_view(path: Path, out: Path) -> Path:
    """Writes the page of all episodes of the run in the folder `path`, finished or not, whole or damaged, and returns
    `out`. Raises ConfigError for a folder that is no run."""
    check_run(path)
    run = RunDir(path)
    index = index_run(run)
    return _write_page(run, index, index.entries, None, out)


def write_report(path: Path) -> Path:
    """Writes `report.html` into the folder of a run, as `write_view` does, and returns its path."""
    check_run(path)
    run = RunDir(path)
    index = index_run(run)
    story = tell_run(index, config_of(run))
    return _write_page(run, index, story.pick(index.entries), story, run.report_path)


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


def _write_page(run: RunDir, index: RunIndex, shown: Sequence[IndexedEpisode], story: Story | None, out: Path) -> Path:
    """Write the page with the episodes `shown`, and before them the story if there is one."""
    config = config_of(run)
    estimator = Estimator.of(config)
    pieces = pieces_of(run, config)
    texts = {name: TokenTexts(each) for name, each in pieces.items()} if "" in pieces else None
    steps = {_unit(entry) for entry in shown}
    blocks = _make_blocks([entry for entry in index.entries if _unit(entry) in steps])
    places = {id(entry): block.number for block in blocks for entry in block.entries}
    numbers = [places[id(entry)] for entry in shown]
    head = head_data(run.path, config, index, shown, numbers, estimator.name, texts is None)
    chosen = set(map(id, shown))
    new = out.with_name(out.name + ".new")
    with writing(out):
        with new.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(_render_top(head, story, len(index.entries)))
            for block, credited in _credit_blocks(blocks, estimator):
                _write_block(file, block, credited, texts, chosen)
            file.write("</body>\n</html>\n")
        new.replace(out)
    return out


def _make_blocks(entries: Sequence[IndexedEpisode]) -> list[Block]:
    """Every entry in one block, by phase and step, attempts at the same task side by side."""
    blocks: list[Block] = []
    order = sorted(entries, key=lambda entry: (entry.phase, entry.step, entry.task_id, entry.line))
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
    return entry.phase, entry.step


def _credit_blocks(blocks: Sequence[Block], estimator: Estimator) -> Iterator[tuple[Block, list[Credited]]]:
    """Yield the blocks in order with the credit of their episodes; held-out episodes and those of a search for
    prompts have none."""
    for (phase, _), members in groupby(blocks, key=lambda block: _unit(block.entries[0])):
        unit = list(members)
        if phase.startswith(("eval/", "prompt/")):
            yield from ((block, [Credited() for _ in block.entries]) for block in unit)
            continue
        episodes = [read_episode(entry).episode for block in unit for entry in block.entries]
        credited = iter(credit_step(episodes, estimator))
        del episodes
        yield from ((block, [next(credited) for _ in block.entries]) for block in unit)


def _write_block(
    file: TextIO, block: Block, credited: Sequence[Credited], texts: Mapping[str, TokenTexts] | None, chosen: set[int]
) -> None:
    """Write the episodes of a block that are chosen, by their id()."""
    vocabulary: dict[int, str] = {}
    episodes = {}
    for entry, credit in zip(block.entries, credited, strict=True):
        if id(entry) in chosen:
            data, known = episode_data(read_episode(entry), credit, texts)
            episodes[f"{entry.phase}:{entry.line}"] = data
            vocabulary |= known
    packed = pack({"texts": None if texts is None else vocabulary, "episodes": episodes})
    file.write(f'<script type="text/plain" id="block-{block.number}">{packed}</script>\n')


def pack(value: Any) -> str:
    """JSON, gzipped, in base64."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0)).decode("ascii")


def _render_top(head: dict[str, Any], story: Story | None, count: int) -> str:
    """The page up to its first block. `count` is the number of all episodes of the run."""
    style, script = _read_inline()
    return render(
        "page.html.j2",
        title=head["title"],
        style=Markup(style),
        script=Markup(script),
        policy=view_policy(),
        head=Markup(pack(head)),
        story=story,
        shown=len(head["episodes"]["line"]),
        count=count,
        address=lambda entry: "#" + urlencode({"episode": f"{entry.phase}:{entry.line}"}),
    )


def render(template: str, *, folder: Path = PAGE, **values: Any) -> str:
    """A page of the folder with these values. A text among them is escaped, a Markup is not."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def view_policy() -> str:
    """The page's Content-Security-Policy, the same for every run."""
    style, script = _read_inline()
    return content_policy([script], [style])


@cache
def _read_inline() -> tuple[str, str]:
    """The page's style and script."""
    script = read_parts("js", SCRIPTS)
    return read_parts("css", STYLES), f'"use strict";\n(() => {{\n{script}\n}})();\n'


def read_parts(kind: str, names: Sequence[str], folder: Path = PAGE) -> str:
    """The files of the folder with these names and the ending `kind`, one after the other."""
    return "\n".join((folder / f"{name}.{kind}").read_text(encoding="utf-8") for name in names)
