"""The page about several models that played the same tasks: tables, and the tasks at which they differ, each cell with
its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from astune.monitor.run_dir import RunDir
from astune.monitor.summary import show_figure
from astune.selection.rows import Rows, cost_rows, model_rows, outcome_lines
from astune.selection.select import Selection
from astune.training.standalone import Played
from astune.viewer.page import content_policy, read_parts, render, write_view
from astune.viewer.run_index import IndexedEpisode, index_run

PAGE = "models.html"
LEAGUE = "league.html"
TESTED = (
    "p: paired permutation test over tasks against the best, corrected for all pairs (Holm). Cost and tokens are those "
    "of all calls for each attempt that was solved."
)
RATED = (
    "Ratings are of Bradley and Terry's model, with one draw of each against a player of rating 0; intervals are "
    "bootstrapped over tasks. The episodes of each pair are in the folders beside this page."
)
VIEW = "view.html"


@dataclass(frozen=True)
class TaskCell:
    """What one model made of one task, "-" for nothing, and the addresses of its episodes."""

    text: str
    part: int
    """The colour: 0 all solved, 3 none, 2 in between, 1 not played."""
    links: tuple[str, ...]


@dataclass(frozen=True)
class TaskRow:
    """A task at which the models differ."""

    task_id: str
    query: str
    cells: tuple[TaskCell, ...]


def write_models_page(found: Selection) -> Path:
    """Write the page beside the folders of the models, a page of all episodes into each, and return its path."""
    played = list(found.contest.played.values())
    path = played[0].folder.parent / PAGE
    episodes = {one.about.candidate.name: _episodes(one, found.evaluation) for one in played}
    lines = outcome_lines(found)
    return _write(
        path,
        title="which model?",
        note=TESTED,
        headline=lines[-1],
        lines=lines[:-1],
        tables=[model_rows(found), cost_rows(found)],
        names=[one.name for one in found.figures],
        rows=_rows_that_differ(found, episodes, path.parent),
        tasks=max(len(each) for each in episodes.values()),
    )


def _write(path: Path, **told: Any) -> Path:
    style = read_parts("css", ("base", "story"))
    rest: dict[str, Any] = {"headline": "", "lines": (), "rows": (), "tasks": 0}
    rest |= told
    page = render("models_report.html.j2", policy=content_policy(styles=[style]), style=Markup(style), **rest)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")
    return path


def write_league_page(folder: Path, names: Sequence[str], tables: Sequence[Rows]) -> Path:
    """Write the page of a league's tables into the folder, and return its path."""
    return _write(folder / LEAGUE, title="versions against versions", note=RATED, tables=tables, names=names)


def _episodes(played: Played, evaluation: str) -> dict[str, list[IndexedEpisode]]:
    """The episodes by task, with a page that shows them."""
    found: dict[str, list[IndexedEpisode]] = {}
    for entry in index_run(RunDir(played.folder)).by_phase()[f"eval/{evaluation}"]:
        found.setdefault(entry.task_id, []).append(entry)
    write_view(played.folder, played.folder / VIEW)
    return found


def _rows_that_differ(
    found: Selection, episodes: dict[str, dict[str, list[IndexedEpisode]]], start: Path
) -> list[TaskRow]:
    """The tasks at which models have different values, or some has none, those of the widest difference first."""
    tasks = dict.fromkeys(task for each in episodes.values() for task in each)
    played = {name: one.folder for name, one in found.contest.played.items()}
    rows = []
    for task in tasks:
        told = [one.values[task] for one in found.figures if task in one.values]
        failed = any(task not in one.values and task in episodes[one.name] for one in found.figures)
        if not failed and (not told or min(told) == max(told)):
            continue
        cells = []
        for one in found.figures:
            entries = episodes[one.name].get(task, [])
            value, folder = one.values.get(task), played[one.name].relative_to(start)
            text = "not played" if not entries else "-" if value is None else show_figure(found.figure, value)
            part = 1 if value is None else 0 if value >= 1 else 3 if value <= 0 else 2
            cells.append(TaskCell(text, part, tuple(_address(folder, entry) for entry in entries)))
        query = next(entry.query for each in episodes.values() for entry in each.get(task, []))
        rows.append((min(told, default=0.0) - max(told, default=0.0), TaskRow(task, query, tuple(cells))))
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def _address(folder: Path, entry: IndexedEpisode) -> str:
    return f"{quote(str(folder))}/{VIEW}#{urlencode({'episode': f'{entry.phase}:{entry.line}'})}"
