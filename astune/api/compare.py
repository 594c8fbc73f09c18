"""`astune.compare`: what `astune compare` does, as a function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rich.table import Table

from astune.api.eval_tables import show_signed
from astune.api.evaluate import Playing, open_evaluation
from astune.api.run import Curve, Run
from astune.api.settings import configure
from astune.backbone.playing import playing_engine
from astune.config.evaluation import check_figures
from astune.config.load import LoadedConfig
from astune.errors import ConfigError, TrainingError
from astune.monitor.checkpoint_names import find_checkpoint
from astune.monitor.disk import write_whole, writing
from astune.monitor.run_dir import runs_folder
from astune.monitor.summary import show_interval_of, show_p
from astune.prompts.result import PromptSearch
from astune.support.terminal import Console, ShowsItself, make_table
from astune.training.candidates import candidate_of
from astune.training.comparison import row_to_json
from astune.training.four_cells import CELLS, Cell, Crossed, cross, play_cells
from astune.training.standalone import Played
from astune.viewer.cells_chart import cells_svg
from astune.viewer.held_out import show_mean

CAPTION = (
    "p: paired permutation test over tasks, two-sided. Interval: bootstrap over tasks. Where the last line is above 0 "
    "prompt and weights need each other; where it is below, the one does in part what the other does."
)
"""Explains the tables below them."""


@dataclass(frozen=True)
class FourCells(ShowsItself):
    """The first prompt and the tuned one, each with the first weights and the trained ones, on the same held-out tasks.
    `charts` are pictures, one for each of `crossed`, which is empty where nothing could be judged."""

    folder: Path
    played: Mapping[Cell, Played] = field(repr=False)
    crossed: Sequence[Crossed] = field(repr=False)
    charts: Sequence[Path]

    def plot(self) -> Curve:
        """The picture of the first figure. Raises TrainingError where nothing could be judged in all four cells."""
        if not self.crossed:
            raise TrainingError(f"no task was judged in all four cells, so there is no picture: see {self.folder}")
        return Curve(cells_svg(self.crossed[0]))

    def to_json(self) -> dict[str, Any]:
        return {
            "cells": {cell.name: {**cell._asdict(), "folder": str(self.played[cell].folder)} for cell in CELLS},
            "figures": [
                {
                    "evaluation": each.evaluation,
                    "figure": each.figure,
                    "left_out": each.left_out,
                    "cells": {cell.name: found._asdict() for cell, found in each.cells.items()},
                    "effects": list(map(row_to_json, each.effects)),
                }
                for each in self.crossed
            ],
            "charts": [str(chart) for chart in self.charts],
        }

    def print(self, console: Console) -> None:
        """Print the four cells of each figure, and what each change adds to them."""
        for table in (table for each in self.crossed for table in tables_of(each)):
            console.print(table)
        console.print(CAPTION if self.crossed else "nothing could be judged")

    def _repr_html_(self) -> str:
        return super()._repr_html_() + "".join(map(cells_svg, self.crossed))


def compare(
    workflow: object = None,
    *,
    prompts: PromptSearch | str | PathLike[str] | None = None,
    checkpoint: Run | str | PathLike[str] | None = None,
    tasks: object = None,
    judge: object = None,
    model: object = None,
    validation_tasks: object = None,
    conf: str | PathLike[str] | None = None,
    figures: Sequence[str] = (),
    limit: int | None = None,
    out: str | PathLike[str] | None = None,
    **keys: Any,
) -> FourCells:
    """Tell whether it is the prompt or the weights: play held-out tasks with the first of each, with the prompt of a
    search, with the weights of a run, and with both.

        cells = astune.compare(solve, prompts=search, checkpoint=run, tasks=tasks, validation_tasks=0.3, judge=exact)

    `prompts` is what `astune.search_prompts` gave, its folder or a prompts.yaml; `checkpoint` a `Run`, or what
    `astune eval --checkpoint` takes. All else is as in `astune.tune`. What was played before is not played again.
    """
    with configure(workflow, tasks, judge, model, validation_tasks=validation_tasks, conf=conf, keys=keys) as loaded:
        texts = prompts.folder if isinstance(prompts, PromptSearch) else prompts
        weights = checkpoint.folder if isinstance(checkpoint, Run) else checkpoint
        return compare_loaded(
            loaded,
            None if texts is None else str(texts),
            None if weights is None else str(weights),
            figures,
            Playing(limit, None if out is None else Path(out)),
        )


def compare_loaded(
    loaded: LoadedConfig,
    prompts: str | None,
    checkpoint: str | None,
    figures: Sequence[str],
    playing: Playing,
) -> FourCells:
    """Play the cells of a configuration, and write `cells.json` and the charts into their folder."""
    config = loaded.config.astune
    run = runs_folder(loaded.config) / (config.experiment_name or "run")
    source = prompts or config.prompts.source
    if source is None:
        raise ConfigError(f"--prompts: name a search, as --prompts {run}-prompts, or set astune.prompts.from")
    if checkpoint is None and find_checkpoint(str(run)) is None:
        raise ConfigError(f"--checkpoint: there is no trained {run}; name the weights, as --checkpoint runs/p/n@best")
    if checkpoint == "none":
        raise ConfigError("--checkpoint none: these are the first weights, which are played anyway; name trained ones")
    check_figures(figures)
    trained = candidate_of(checkpoint or str(run), config)
    load_engine, as_model = playing_engine(loaded, playing.backbone, playing.engine)
    folder = playing.out or run.with_name(f"{run.name}-compare")
    with open_evaluation(loaded, playing) as (ready, evaluations):
        played = play_cells(loaded.config, ready, source, trained, evaluations, load_engine, folder, as_model=as_model)
    crossed = cross(played, figures)
    missing = {*figures} - {each.figure for each in crossed}
    if missing and (crossed or cross(played)):  # else nothing was judged
        raise ConfigError(f"--figures: the cells have no {min(missing)!r} for a task in common")
    found = FourCells(folder, played, crossed, [folder / _name_chart(each) for each in crossed])
    with writing(folder):
        for each, chart in zip(crossed, found.charts, strict=True):
            chart.write_text(cells_svg(each), encoding="utf-8")
        write_whole(folder / "cells.json", json.dumps(found.to_json(), indent=1) + "\n")
    return found


def _name_chart(crossed: Crossed) -> str:
    return f"cells_{crossed.evaluation}_{crossed.figure}.svg".replace("/", "_")


def tables_of(crossed: Crossed) -> list[Table]:
    """The four cells, and what each change adds to them."""

    title = f"held-out {crossed.evaluation}, {crossed.figure}"
    n = crossed.effects[0].test.n
    cells = make_table("", "first weights", "trained weights", left=("",), title=f"{title}, {n:,} tasks")
    for tuned, words in ((False, "first prompt"), (True, "tuned prompt")):
        found = (crossed.cells[Cell(tuned, trained)] for trained in (False, True))
        cells.add_row(words, *(show_mean(crossed.figure, each) for each in found))
    effects = make_table("what it adds", "change", "95 % interval", "p", left=("what it adds", "95 % interval"))
    for name, difference, test in crossed.effects:
        change = show_signed(crossed.figure, difference.mean)
        effects.add_row(name, change, show_interval_of(crossed.figure, difference), show_p(test))
    if crossed.left_out:
        effects.caption = f"without the tasks, {crossed.left_out:,}, that have the figure in some cells only"
    return [cells, effects]
