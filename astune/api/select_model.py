"""`astune.select_model`: what `astune eval --models` does, as a function."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from astune.api.eval_tables import models_tables
from astune.api.evaluate import Playing, name_model, open_evaluation
from astune.api.run import Run
from astune.api.settings import configure
from astune.config.load import LoadedConfig
from astune.errors import ConfigError
from astune.selection.pick import read_rule
from astune.selection.rows import outcome_lines, selection_to_json
from astune.selection.select import (
    Selection,
    candidates_of,
    engine_for,
    list_unpriced,
    play_models,
    select,
)
from astune.support.terminal import Console, ShowsItself
from astune.viewer.models_page import write_models_page
from astune.workflow.live_model import LiveModel


class SelectedModel(ShowsItself):
    """The outcome: `picked` is the name of the model, None where nothing tells; `report` is the page of the tasks at
    which they differ. A notebook shows the tables."""

    def __init__(self, selection: Selection) -> None:
        self.selection, self.report = selection, write_models_page(selection)
        self.picked = None if selection.picked is None else selection.picked.name

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return selection_to_json(self.selection, self.report)

    def print(self, console: Console) -> None:
        for table in models_tables(self.selection):
            console.print(table)
        for line in outcome_lines(self.selection):
            console.print(line, soft_wrap=True)


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
        playing = Playing(out=None if out is None else Path(out), given=tasks is not None)
        return select_loaded(loaded, names, pick, stop_early, "models", playing)


def select_loaded(
    loaded: LoadedConfig,
    models: Sequence[str | LiveModel],
    pick: str,
    stop_early: float,
    option: str,
    playing: Playing,
) -> SelectedModel:
    """Select among the models that `option` names, as a configuration says."""
    candidates = candidates_of(models, loaded.config.astune, option)
    rule = read_rule(pick, list_unpriced(candidates))
    if len(candidates) < 2:
        raise ConfigError(f"--models: expected two or more models to choose from, got {len(candidates)}")
    if not 0 <= stop_early < 0.5:
        raise ConfigError(f"--stop-early: expected a chance from 0, which is off, to below 0.5, got {stop_early}")
    with open_evaluation(loaded, playing) as (ready, evaluations):
        engine = engine_for(loaded, candidates, playing.backbone, playing.engine)
        contest = play_models(loaded, ready, evaluations, candidates, engine, playing.out, rule, stop_early)
    return SelectedModel(select(contest, rule))
