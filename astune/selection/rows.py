"""The rows of the tables about models, for the terminal and for the page, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from astune.monitor.summary import show_figure, show_interval_of, show_p
from astune.selection.figures import ModelFigures
from astune.selection.select import Selection
from astune.training.comparison import row_to_json

Rows: TypeAlias = tuple[str, Sequence[str], list[tuple[str, ...]]]
"""A title, the names of columns, and the cells. "-" stands for what is not known."""


def model_rows(found: Selection) -> Rows:
    """Make the rows of how much each solves, and how that compares with the best."""
    against = {one.name: one for one in found.against}
    rows: list[tuple[str, ...]] = []
    for one in found.figures:
        beside = against.get(one.name)
        rows.append(
            (
                one.name,
                "-" if one.solved is None else show_figure(found.figure, one.solved.mean),
                show_interval_of(found.figure, one.solved),
                "-" if beside is None else show_figure(found.figure, beside.difference.mean),
                "-" if beside is None else show_p(beside.test._replace(p=beside.corrected)),
                f"{len(one.values):,}",
                f"{one.failed:,} of {one.attempts:,}",
            )
        )
    name = "success" if found.figure == "success" else "reward"
    columns = ("model", name, "95 % interval", "to best", "p", "tasks", "failed")
    return f"{found.evaluation}: which model?", columns, rows


def cost_rows(found: Selection) -> Rows:
    """Make the rows of what a solved task takes, and of seconds: the median, and what 95 % stay below."""
    columns = ("model", "cost", "tokens", "episode p50", "p95", "call p50", "p95")
    rows: list[tuple[str, ...]] = [
        (
            one.name,
            show_cost(one.cost_per_solved),
            "-" if one.tokens_per_solved is None else f"{one.tokens_per_solved:,.0f}",
            *_seconds(one.episode_seconds),
            *_seconds(one.call_seconds),
        )
        for one in found.figures
    ]
    return f"{found.evaluation}: what a solved task takes, and seconds", columns, rows


def show_cost(cost: float | None) -> str:
    """
    >>> show_cost(None), show_cost(0.0), show_cost(0.000123456), show_cost(1.5)
    ('-', '0', '0.000123', '1.5')
    """
    return "-" if cost is None else f"{cost:.3g}"


def _seconds(pair: tuple[float, float] | None) -> tuple[str, str]:
    return ("-", "-") if pair is None else (f"{pair[0]:.2f} s", f"{pair[1]:.2f} s")


def outcome_lines(found: Selection) -> list[str]:
    """Say who was left out, who could not be reached, why attempts failed, and which one is picked."""
    lines = [
        f"left out: {worse.name} after {worse.tasks} tasks, {show_figure(found.figure, worse.value)} where "
        f"{worse.leader} had {show_figure(found.figure, worse.leading)}"
        for worse in found.contest.left_out.values()
    ]
    lines += [f"not reached: {name}: {why}" for name, why in found.contest.unreached.items()]
    reached = [one for one in found.figures if one.name not in found.contest.unreached]
    lines += [
        f"failed: {one.name}: {count:,} of {one.attempts:,}: {cause}" for one in reached for cause, count in one.causes
    ]
    return [*lines, _pick_line(found, reached)]


def _pick_line(found: Selection, reached: Sequence[ModelFigures]) -> str:
    rule = found.rule.by if found.rule.by == "best" else f"{found.rule.by} within {100 * found.rule.within:g} points"
    if found.picked is None:
        solved = any(one.solved is not None for one in reached)
        return f"picked: none, as {'none solved a task' if solved else 'nothing could be judged'}"
    unclear = [
        one.name
        for one in found.against
        if one.corrected >= 0.05 and one.name != found.picked.name and one.name not in found.contest.left_out
    ]
    doubt = f"; no clear difference to {', '.join(unclear)}" if unclear and found.rule.by == "best" else ""
    return f"picked: {found.picked.name} ({rule}){doubt}"


def selection_to_json(found: Selection, page: object) -> dict[str, Any]:
    """Figures that are not known are null."""
    return {
        "evaluation": found.evaluation,
        "figure": found.figure,
        "rule": asdict(found.rule),
        "picked": None if found.picked is None else found.picked.name,
        "models": [_model_to_json(one) for one in found.figures],
        "against_best": [row_to_json(one) for one in found.against],
        "left_out": [asdict(worse) for worse in found.contest.left_out.values()],
        "unreached": found.contest.unreached,
        "report": str(page),
    }


def _model_to_json(one: ModelFigures) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in vars(one) if name not in ("values", "causes", "solved")}
    causes = [{"cause": str(cause), "episodes": count} for cause, count in one.causes]
    return row | {"solved": None if one.solved is None else one.solved._asdict(), "causes": causes}
