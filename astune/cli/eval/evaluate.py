"""`astune eval`: held-out tasks played with a checkpoint, and checkpoints compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from astune.api.eval_tables import as_json, choose_figures, overview_table
from astune.api.evaluate import EvaluatedModels, Playing, compare_played, evaluate_loaded
from astune.api.league import league_loaded
from astune.api.select_model import SelectedModel, select_loaded
from astune.cli.endings import DONE, FAILED, INTERRUPTED, LEARNED_NOTHING
from astune.config.evaluation import check_figures
from astune.config.load import load_config
from astune.errors import AstuneError, ConfigError
from astune.monitor.run_dir import RunDir
from astune.support.terminal import Console
from astune.support.visible import tell, tell_json
from astune.training.standalone import read_played
from astune.viewer import write_report

STOPPED = "interrupted; every episode that ended is kept, and the same command goes on"


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
    playing: Playing,
    shown: Shown,
    stop_early: float = 0.0,
) -> int:
    """Plays the held-out tasks with each model. Returns 1 where in one of them, or with `shown.pick` in all of them,
    nothing could be judged, and 3 where a model was to be picked and none solved a task."""
    option = "--checkpoint" if shown.pick is None else "--models"
    if conf is None:
        raise ConfigError(f"{option}: name the configuration too, as --conf my_agent.yaml")
    if shown.pick is not None and shown.judge_pairs:
        raise ConfigError("--judge-pairs: it compares with the first at --checkpoint; take it out, or name them there")
    if shown.judge_pairs and len(models) == 1:
        raise ConfigError("--judge-pairs: it compares the attempts of two; name a second one at --checkpoint")
    check_figures(shown.figures)
    loaded = load_config(conf, overrides, backbone=playing.backbone)
    try:
        if shown.pick is not None:
            return _report_models(select_loaded(loaded, models, shown.pick, stop_early, option, playing), shown)
        found = evaluate_loaded(loaded, models, option, playing, shown.figures, judge_pairs=shown.judge_pairs)
    except KeyboardInterrupt:
        tell(STOPPED)
        return INTERRUPTED
    return _report(found, shown)


def play_league(
    conf: Path | None,
    overrides: Sequence[str],
    models: Sequence[str],
    playing: Playing,
    unused: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Plays versions of two models against each other. `unused` are options that it has no use for. Returns 1 where
    nothing could be judged."""
    if conf is None:
        raise ConfigError("--league: name the configuration too, as --conf my_agent.yaml")
    if unused:
        raise ConfigError(f"--league: it has no use for {', '.join(f'--{name}' for name in unused)}; take that out")
    try:
        found = league_loaded(load_config(conf, overrides, backbone=playing.backbone), models, playing)
    except KeyboardInterrupt:
        tell(STOPPED)
        return INTERRUPTED
    if as_json:
        tell_json(found.as_dict())
    else:
        found.print(Console())
        tell(f"report  {found.report}")
    return DONE if any(found.league.won.values()) else FAILED


def _report_models(found: SelectedModel, shown: Shown) -> int:
    evaluated = choose_figures(found.selection.contest.played.values(), shown.figures)
    if shown.as_json:
        tell_json(found.as_dict() | as_json(evaluated, ()))
    else:
        console = Console()
        console.print(overview_table(evaluated))
        found.print(console)
        tell(f"report  {found.report}")
    if found.picked is not None:
        return DONE
    return LEARNED_NOTHING if any(one.solved for one in found.selection.figures) else FAILED


def compare_folders(folders: Sequence[Path], shown: Shown, unused: Sequence[str]) -> int:
    """Compares two evaluations that were played before. `unused` are arguments that it has no use for."""
    if unused:
        raise ConfigError(f"--compare: it plays nothing, and has no use for {', '.join(unused)}; take that out")
    check_figures(shown.figures)
    played = [read_played(folder) for folder in folders]
    config = load_config(RunDir(folders[-1]).config_path).config.astune if shown.judge_pairs else None
    return _report(compare_played(played, shown.figures, config), shown, reports=False)


def _report(found: EvaluatedModels, shown: Shown, *, reports: bool = True) -> int:
    if shown.as_json:
        tell_json(found.as_dict())
    else:
        found.print(Console())
    for folder in found.folders if reports and not shown.as_json else ():
        tell(f"folder  {folder}")
        try:
            tell(f"report  {write_report(folder)}")
        except AstuneError as error:
            tell(f"report  not written: {error}")
    judged = all(figures for one in found.models for figures in one.all.values())
    by_judge = all(any(wins.by == "judge" for wins in each.wins) for each in found.compared) and shown.judge_pairs
    return DONE if judged or by_judge else FAILED
