"""`astune.select_model`: what `astune eval --models` does, as a function."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from astune.api.eval_tables import models_tables
from astune.api.evaluate import WIDTH, name_model, open_evaluation
from astune.api.run import Run
from astune.api.settings import configure
from astune.config.load import LoadedConfig
from astune.selection.pick import read_rule
from astune.selection.rows import outcome_lines, selection_to_json
from astune.selection.select import (
    Selection,
    candidates_of,
    choosing_for,
    engine_for,
    list_unpriced,
    play_models,
    select,
)
from astune.support.terminal import Console
from astune.viewer.models_page import write_models_page
from astune.workflow.live_model import LiveModel


class SelectedModel:
    """The outcome: `picked` is the name of the model, None where nothing tells; `report` is the page of the tasks at
    which they differ. A notebook shows the tables."""

    def __init__(self, selection: Selection, report: Path) -> None:
        self.selection, self.report = selection, report
        self.picked = None if selection.picked is None else selection.picked.name

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return selection_to_json(self.selection, self.report)

    def __str__(self) -> str:
        console = Console(width=WIDTH, color_system=None)
        with console.capture() as text:
            for table in models_tables(self.selection):
                console.print(table)
        return text.get() + "\n".join(outcome_lines(self.selection))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def select_model(
    workflow: object = None,
    tasks: object = None,
    judge: object = None,
    *,
    models: Sequence[str | PathLike[str] | Run | LiveModel],
    pick: str = "best",
    stop_early: float = 0.05,
    conf: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    **keys: Any,
) -> SelectedModel:
    """Play tasks with each of `models`, leave out early those that cannot win, and pick one by the rule `pick`.

        astune.select_model(solve, "test.jsonl", exact, models=["http://host/v1#small", "http://host/v1#large"]).picked

    A model is given as to `astune.evaluate`, or one of `astune.rollout.auxiliary_models`, which may have prices.
    `pick` is "best", "cheapest within 3 points" or "fastest within 3 points". `stop_early` is the chance that the best
    may be left out before the end; 0: all play all tasks. The other arguments are those of `astune.evaluate`, and an
    equal call goes on where one was stopped. Raises `ConfigError` for bad input.
    """
    with configure(workflow, tasks, judge, conf=conf, keys=keys) as loaded:
        names = [model if isinstance(model, LiveModel) else name_model(model) for model in models]
        to = None if out is None else Path(out)
        found = select_loaded(loaded, names, pick, stop_early, "models", given=tasks is not None, out=to)
    return SelectedModel(found, write_models_page(found))


def select_loaded(
    loaded: LoadedConfig,
    models: Sequence[str | LiveModel],
    pick: str,
    stop_early: float,
    option: str,
    *,
    given: bool = False,
    limit: int | None = None,
    out: Path | None = None,
    backbone: str | None = None,
    engine: str | None = None,
) -> Selection:
    """Select among the models that `option` names, as a configuration says; see `open_evaluation` for `given` and
    `limit`."""
    candidates = candidates_of(models, loaded.config.astune, option)
    rule = read_rule(pick, list_unpriced(candidates))
    choosing = choosing_for(rule, len(candidates), stop_early)
    with open_evaluation(loaded, given=given, limit=limit) as (ready, evaluations):
        used = engine_for(loaded, candidates, backbone, engine)
        return select(play_models(loaded, ready, evaluations, candidates, used, out, choosing), rule)
