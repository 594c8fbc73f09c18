"""`astune eval`: held-out tasks played with a checkpoint, and checkpoints compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from astune.api.eval_tables import (
    ComparedCheckpoints,
    Evaluated,
    as_json,
    evaluation_tables,
    models_tables,
    overview_table,
)
from astune.api.evaluate import open_evaluation
from astune.api.select_model import select_loaded
from astune.cli.endings import DONE, FAILED, INTERRUPTED, LEARNED_NOTHING
from astune.config.evaluation import check_figures
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import AstuneError, ConfigError, nearest
from astune.monitor.run_dir import RunDir
from astune.selection.rows import outcome_lines, selection_to_json
from astune.selection.select import Selection, candidates_of, engine_for, play_models
from astune.support.concurrency import run_and_leave
from astune.support.terminal import Console
from astune.support.visible import tell
from astune.training.comparison import compare, comparing_judges, wins_by_judge, wins_by_reward
from astune.training.standalone import Played, read_played
from astune.viewer import write_report
from astune.viewer.models_page import write_models_page


class Shown(NamedTuple):
    """The wishes of the command line: figures to show (none means all), pairs of attempts for the judge, JSON or
    tables; the rule that picks a model, None where others are compared with the first."""

    figures: Sequence[str] = ()
    judge_pairs: bool = False
    as_json: bool = False
    pick: str | None = None


def evaluate(
    conf: Path | None,
    overrides: Sequence[str],
    models: Sequence[str],
    backbone: str | None,
    engine: str | None,
    limit: int | None,
    out: Path | None,
    shown: Shown,
    stop_early: float = 0.0,
) -> int:
    """Plays the held-out tasks with each model. Returns 1 where in one of them, or with `shown.pick` in all of them,
    nothing could be judged, and 3 where a model was to be picked and none solved a task."""
    option = "--checkpoint" if shown.pick is None else "--models"
    _check_arguments(conf, models, limit, shown, option)
    loaded = load_config(conf, overrides, backbone=backbone)
    try:
        if shown.pick is not None:
            found = select_loaded(
                loaded, models, shown.pick, stop_early, option, limit=limit, out=out, backbone=backbone, engine=engine
            )
            return _report_models(found, shown)
        candidates = candidates_of(models, loaded.config.astune, option)
        with open_evaluation(loaded, limit=limit) as (ready, evaluations):
            if shown.judge_pairs:
                judge_of = comparing_judges(ready)
                for task in (task for each in evaluations for task in each.tasks):
                    judge_of(task)
            used = engine_for(loaded, candidates, backbone, engine)
            contest = play_models(loaded, ready, evaluations, candidates, used, out)
            return _report(list(contest.played.values()), shown, ready)
    except KeyboardInterrupt:
        tell("interrupted; every episode that ended is kept, and the same command goes on")
        return INTERRUPTED


def _report_models(found: Selection, shown: Shown) -> int:
    evaluated = [Evaluated(one, shown.figures) for one in found.contest.played.values()]
    _check_chosen(evaluated, shown)
    page = write_models_page(found)
    if shown.as_json:
        tell(json.dumps(selection_to_json(found, page) | as_json(evaluated, ()), indent=2))
    else:
        console = Console()
        for table in (*models_tables(found), overview_table(evaluated)):
            console.print(table)
        for line in (*outcome_lines(found), f"report  {page}"):
            tell(line)
    if found.picked is not None:
        return DONE
    return LEARNED_NOTHING if any(one.solved for one in found.figures) else FAILED


def _check_arguments(conf: Path | None, models: Sequence[str], limit: int | None, shown: Shown, option: str) -> None:
    if conf is None:
        raise ConfigError(f"{option}: name the configuration too, as --conf my_agent.yaml")
    if shown.pick is not None and shown.judge_pairs:
        raise ConfigError("--judge-pairs: it compares with the first at --checkpoint; take it out, or name them there")
    if not models and shown.pick is None:
        raise ConfigError("--checkpoint: expected one, or more to compare with the first, got 0")
    if shown.judge_pairs and len(models) == 1:
        raise ConfigError("--judge-pairs: it compares the attempts of two; name a second one at --checkpoint")
    check_figures(shown.figures)
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: expected a number of tasks from 1 on, got {limit}")


def compare_folders(folders: Sequence[Path], shown: Shown, unused: Sequence[str]) -> int:
    """Compares two evaluations that were played before. `unused` are arguments that it has no use for."""
    if unused:
        raise ConfigError(f"--compare: it plays nothing, and has no use for {', '.join(unused)}; take that out")
    check_figures(shown.figures)
    played = [read_played(folder) for folder in folders]
    config = load_config(RunDir(folders[-1]).config_path).config.astune if shown.judge_pairs else None
    return _report(played, shown, config, reports=False)


def _report(played: Sequence[Played], shown: Shown, config: AstuneConfig | None, *, reports: bool = True) -> int:
    """`config` says what judge is shown pairs."""
    evaluated = [Evaluated(one, shown.figures) for one in played]
    comparisons = [_compare(evaluated[0], other, shown, config) for other in evaluated[1:]]
    _check_chosen(evaluated, shown)
    if shown.as_json:
        tell(json.dumps(as_json(evaluated, comparisons), indent=2))
    else:
        console = Console()
        for table in evaluation_tables(evaluated, comparisons):
            console.print(table)
    for one in played if reports and not shown.as_json else ():
        tell(f"folder  {one.folder}")
        try:
            tell(f"report  {write_report(one.folder)}")
        except AstuneError as error:
            tell(f"report  not written: {error}")
    judged = all(figures for one in evaluated for figures in one.all.values())
    by_judge = all(any(wins.by == "judge" for wins in each.wins) for each in comparisons) and shown.judge_pairs
    return DONE if judged or by_judge else FAILED


def _compare(first: Evaluated, second: Evaluated, shown: Shown, config: AstuneConfig | None) -> ComparedCheckpoints:
    rows = compare(first.played, second.played)
    if shown.figures:
        rows = [row for figure in shown.figures for row in rows if row.figure == figure]
    wins = wins_by_reward(first.played, second.played)
    if shown.judge_pairs and config is not None:
        wins += run_and_leave(wins_by_judge(first.played, second.played, config))
    return ComparedCheckpoints(first.name, second.name, rows, wins)


def _check_chosen(evaluated: Sequence[Evaluated], shown: Shown) -> None:
    """Raise ConfigError for a figure that none of them has, where attempts were judged."""
    known = list(dict.fromkeys(figure for one in evaluated for found in one.all.values() for figure in found))
    for figure in shown.figures if known else ():
        if figure not in known:
            raise ConfigError(
                f"--figures: the evaluation has no {figure!r}.{nearest(figure, known)} It has: {', '.join(known)}"
            )
