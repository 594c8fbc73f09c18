"""`astune eval`: held-out tasks played with a checkpoint, and two checkpoints compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from astune.cli.exit_codes import DONE, FAILED, INTERRUPTED
from astune.cli.input_check import check_input
from astune.config.load import LoadedConfig, load_config
from astune.errors import AstuneError, ConfigError
from astune.monitor.progress_view import show_tasks
from astune.monitor.summary import show_figure, show_interval
from astune.plugins import load_plugin
from astune.rollout.evaluation_metrics import evaluation_metrics, is_share
from astune.support.statistics import PairedTest
from astune.support.terminal import Console
from astune.support.visible import tell
from astune.training.comparison import Compared, compare
from astune.training.engine import LoadEngine
from astune.training.held_out import evaluations_of
from astune.training.rollout_setup import environment_service
from astune.training.standalone import Played, candidate_of, play, read_played
from astune.training.tasks import read_tasks
from astune.viewer import write_report

ENGINES = {"local": "astune.backbone.local:load_engine"}
PLAYING = ("local", "verl")
"""Backbones that play with a checkpoint."""


def evaluate(
    conf: Path | None,
    overrides: Sequence[str],
    checkpoints: Sequence[str],
    backbone: str | None,
    engine: str | None,
    limit: int | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Plays the held-out tasks with each checkpoint. Returns 1 where in one of them nothing could be judged."""
    _check(conf, checkpoints, limit)
    loaded = load_config(conf, overrides, backbone=backbone)
    config = loaded.config.astune
    candidates = [candidate_of(text, config) for text in checkpoints]
    check_input(config)
    with ExitStack() as stack:
        ready = stack.enter_context(environment_service(config))
        evaluations = evaluations_of(ready.evaluation, read_tasks(ready))
        if not evaluations:
            raise ConfigError(f"{conf}: there are no held-out tasks; set astune.task_reader.jsonl.validation.file_path")
        chosen = [each if limit is None else each._replace(tasks=list(each.tasks[:limit])) for each in evaluations]
        load_engine, as_model = _engine(loaded, backbone, engine)
        try:
            played = [
                play(loaded.config, ready, candidate, chosen, load_engine, _out(out, number), as_model=as_model)
                for number, candidate in enumerate(candidates, start=1)
            ]
        except KeyboardInterrupt:
            tell("interrupted; every episode that ended is kept, and the same command goes on")
            return INTERRUPTED
    return _report(played, as_json)


def _engine(loaded: LoadedConfig, backbone: str | None, engine: str | None) -> tuple[LoadEngine, bool]:
    """Who plays, and whether a checkpoint is the folder of a model to it, whichever backbone wrote it. An engine of the
    user's own loads its own checkpoints. The file of another backbone is played in this process."""
    if engine is not None:
        return load_plugin(engine, kind="engine", builtin=ENGINES), False
    if backbone is not None and backbone not in PLAYING:
        raise ConfigError(f"--backbone {backbone}: it plays no checkpoints; expected {' or '.join(PLAYING)}")
    if loaded.config.astune.backbone != "verl":
        return load_plugin("local", kind="engine", builtin=ENGINES), True
    from astune.backbone.verl.backbone import engine_of

    return engine_of(loaded), True


def _check(conf: Path | None, checkpoints: Sequence[str], limit: int | None) -> None:
    if conf is None:
        raise ConfigError("--checkpoint: name the configuration too, as --conf my_agent.yaml")
    if not 1 <= len(checkpoints) <= 2:
        raise ConfigError(f"--checkpoint: expected one, or two to compare, got {len(checkpoints)}")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: expected a number of tasks from 1 on, got {limit}")


def _out(out: Path | None, number: int) -> Path | None:
    return out if out is None or number == 1 else out.with_name(f"{out.name}-second")


def compare_folders(folders: Sequence[Path], as_json: bool, unused: Sequence[str]) -> int:
    """Compares two evaluations that were played before. `unused` are arguments that it has no use for."""
    if unused:
        raise ConfigError(f"--compare: it plays nothing, and has no use for {', '.join(unused)}; take that out")
    return _report([read_played(folder) for folder in folders], as_json, reports=False)


def _report(played: Sequence[Played], as_json: bool, *, reports: bool = True) -> int:
    figures = [{name: evaluation_metrics(groups, 0.0) for name, groups in one.groups.items()} for one in played]
    compared = compare(*played) if len(played) == 2 else []
    if as_json:
        tell(json.dumps(_as_json(played, figures, compared), indent=2))
    else:
        console = Console()
        for one, found in zip(played, figures, strict=True):
            console.print(_table(one, found))
        if compared:
            console.print(_comparison(played, compared))
    for one in played if reports and not as_json else ():
        tell(f"folder  {one.folder}")
        try:
            tell(f"report  {write_report(one.folder)}")
        except AstuneError as error:
            tell(f"report  not written: {error}")
    judged = all("reward" in metrics or "success" in metrics for found in figures for metrics in found.values())
    return DONE if judged else FAILED


def _table(played: Played, figures: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title=played.about.candidate.name, title_justify="left", box=None, padding=(0, 3, 0, 0))
    for name in ("held-out", "figure", "mean", "95 % interval", "over"):
        table.add_column(name, justify="right" if name == "mean" else "left")
    for name, metrics in figures.items():
        for figure in [key.removesuffix("_tasks") for key in metrics if key.endswith("_tasks")]:
            kind = "success" if is_share(figure) else "reward"
            known = f"{figure}_low" in metrics
            interval = show_interval(kind, metrics[f"{figure}_low"], metrics[f"{figure}_high"]) if known else "-"
            over = f"{metrics[f'{figure}_tasks']:,.0f} " + show_tasks(
                metrics["tasks"], metrics["attempts"], metrics["unjudged"]
            )
            table.add_row(name, _shown(figure), show_figure(kind, metrics[figure]), interval, over)
        if not any(key.endswith("_tasks") for key in metrics):
            over = show_tasks(metrics["tasks"], metrics["attempts"], metrics["unjudged"])
            table.add_row(name, "-", "-", "-", f"0 {over}")
    return table


def _comparison(played: Sequence[Played], compared: Sequence[Compared]) -> Table:
    first, second = (one.about.candidate.name for one in played)
    table = Table(
        title=f"{second} against {first}, on the same tasks", title_justify="left", box=None, padding=(0, 3, 0, 0)
    )
    for name in ("held-out", "figure", first, second, "difference", "95 % interval", "p", "tasks"):
        table.add_column(name, justify="left" if name in ("held-out", "figure") else "right", overflow="fold")
    for row in compared:
        kind = "success" if is_share(row.figure) else "reward"
        left_out = f" ({row.left_out} in one only)" if row.left_out else ""
        table.add_row(
            row.evaluation,
            _shown(row.figure),
            show_figure(kind, row.first.mean),
            show_figure(kind, row.second.mean),
            _signed(kind, row.difference.mean),
            "-" if row.difference.interval is None else show_interval(kind, *row.difference.interval),
            show_p(row.test),
            f"{row.test.n:,}{left_out}",
        )
    table.caption = (
        "p: paired permutation test over tasks, two-sided (of single attempts at a task: McNemar's exact test). "
        "Interval: bootstrap over tasks."
    )
    table.caption_justify = "left"
    return table


def show_p(test: PairedTest) -> str:
    """
    >>> show_p(PairedTest(0.0312, True, 9)), show_p(PairedTest(1e-9, True, 400)), show_p(PairedTest(0.0312, False, 9))
    ('0.031', '< 0.001', '0.031 (drawn)')
    """
    text = "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"
    return text if test.exact else f"{text} (drawn)"


def _signed(kind: str, value: float) -> str:
    return f"{'+' if value > 0 else ''}{show_figure(kind, value)}"


def _shown(figure: str) -> str:
    """
    >>> _shown("pass_at_4"), _shown("success")
    ('pass@4', 'success')
    """
    return figure.replace("pass_at_", "pass@")


def _as_json(
    played: Sequence[Played], figures: Sequence[Mapping[str, Mapping[str, float]]], compared: Sequence[Compared]
) -> dict[str, Any]:
    evaluated = [
        {
            "name": one.about.candidate.name,
            "checkpoint": one.about.candidate.checkpoint,
            "model": one.about.candidate.model,
            "folder": str(one.folder),
            "figures": {name: {k: v for k, v in metrics.items() if k != "seconds"} for name, metrics in found.items()},
        }
        for one, found in zip(played, figures, strict=True)
    ]
    rows = [
        {
            "evaluation": row.evaluation,
            "figure": row.figure,
            "first": row.first._asdict(),
            "second": row.second._asdict(),
            "difference": row.difference._asdict(),
            "p": row.test.p,
            "exact": row.test.exact,
            "tasks": row.test.n,
            "left_out": row.left_out,
        }
        for row in compared
    ]
    return {"evaluated": evaluated, **({"compared": rows} if rows else {})}
