"""The looks of the progress display: the state of a run as bars, as one line, and as the final table."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from astune.monitor.causes import Cause
from astune.monitor.receipt import receipt_lines
from astune.monitor.summary import (
    show_best,
    show_figure,
    show_idle,
    show_interval,
    show_judging,
    show_seconds,
    show_stage,
    show_tools,
)
from astune.support.chinese import localize
from astune.support.terminal import Text, make_table
from astune.types import Episode, RunReport, StopReason

SPARKS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 20
MOVING = 10
"""Steps over which the time of a step is averaged to tell the time left."""
MOST_AGENTS = 4
"""Agents whose rewards the line of a step has."""


@dataclass
class Phase:
    """One stretch of a step: playing episodes, training, evaluating. Counts since it began."""

    name: str = "starting"
    total: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, episode: Episode) -> None:
        self.done += 1
        self.failed += episode.stop_reason in (StopReason.ERROR, StopReason.TIMEOUT)
        self.tokens += sum(len(turn.output_ids) for turn in episode.turns)
        if episode.reward is not None:
            self.rewards.append(episode.reward)

    def figures(self) -> list[str]:
        parts = []
        if self.rewards:
            parts.append(f"reward {sum(self.rewards) / len(self.rewards):.3f}")
        if self.tokens:
            parts.append(f"{self.tokens / max(1e-3, time.monotonic() - self.began):,.0f} tokens/s")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return parts

    def line(self) -> str:
        return "  ".join([f"{self.name}: {self.done}/{self.total} episodes", *self.figures()])


@dataclass
class RunState:
    """The figures of a run under way that the display needs."""

    total_steps: int = 0
    step: int = 0
    phase: Phase = field(default_factory=Phase)
    rewards: list[float] = field(default_factory=list)
    """Mean reward of each step so far."""
    failed: int = 0
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MOVING))
    tokens_per_second: float | None = None

    def start_phase(self, name: str, total_episodes: int, done: int = 0) -> None:
        self.phase = Phase(name, total_episodes, done)

    def add(self, episode: Episode) -> None:
        self.phase.add(episode)

    def finish_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.step = step
        self.failed += int(metrics.get("episodes/failed", 0))
        self.tokens_per_second = metrics.get("throughput/tokens_per_second")
        if math.isfinite(metrics.get("reward/mean", math.nan)):
            self.rewards.append(metrics["reward/mean"])
        if "time/step" in metrics:
            self.step_seconds.append(metrics["time/step"])

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training that are left, by the mean of the last steps; None before the first step is done and
        after the last."""
        if not self.step_seconds or self.step >= self.total_steps:
            return None
        return (self.total_steps - self.step) * sum(self.step_seconds) / len(self.step_seconds)


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last part of a curve in one line of text; with more values than columns, each column is a mean.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    size = max(1, math.ceil(len(values) / width))
    means = [math.fsum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[math.floor((value - low) * scale + 0.5)] for value in means)


def status_panel(state: RunState) -> RenderableType:
    """Two bars, the run's and the phase's, and under them how the reward goes."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=26, no_wrap=True)
    grid.add_column(width=BAR_WIDTH)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(
        Text(f"step {state.step}/{state.total_steps}", style="bold"),
        ProgressBar(total=max(1, state.total_steps), completed=state.step, width=BAR_WIDTH),
        Text("  ".join(_pace(state))),
    )
    phase = state.phase
    count = f" {phase.done}/{phase.total}" if phase.total else ""
    grid.add_row(
        Text(phase.name + count, style="dim"),
        ProgressBar(total=max(1, phase.total), completed=phase.done, width=BAR_WIDTH) if phase.total else "",
        Text("  ".join(phase.figures()), style="dim"),
    )
    line = Text()
    if state.rewards:
        line.append(f"reward {state.rewards[-1]:.3f}  ", style="bold")
        line.append(sparkline(state.rewards), style="green")
    if state.failed:
        line.append(f"   {state.failed:,} episodes failed", style="yellow")
    return Group(grid, line)


def _pace(state: RunState) -> list[str]:
    left, speed = state.seconds_left, state.tokens_per_second
    parts = [] if left is None else [f"{show_seconds(left)} left"]
    return parts if speed is None else [*parts, f"{speed:,.0f} tokens/s"]


def step_line(state: RunState, metrics: Mapping[str, float]) -> str:
    """One step as one line. Figures that were not logged are left out."""
    width = len(str(state.total_steps))
    parts = [f"step {state.step}/{state.total_steps}".ljust(len("step /") + 2 * width)]
    if "reward/mean" in metrics:
        parts.append(f"reward {metrics['reward/mean']:.3f}{_show_agents(metrics)}")
    if "success/mean" in metrics:
        parts.append(f"success {100 * metrics['success/mean']:5.1f} %")
    if "loss" in metrics:
        parts.append(f"loss {metrics['loss']:+.4f}")
    for name, value in metrics.items():
        if name.startswith("model/") and name.endswith("/loss"):
            parts.append(f"loss of {name.split('/')[1]} {value:+.4f}")
    if "throughput/tokens_per_second" in metrics:
        parts.append(f"{metrics['throughput/tokens_per_second']:,.0f} tokens/s")
    if metrics.get("episodes/failed"):
        parts.append(f"[yellow]{metrics['episodes/failed']:.0f} failed[/]")
    if state.seconds_left is not None:
        parts.append(f"{show_seconds(state.seconds_left)} left")
    return "  ".join(parts)


def _show_agents(metrics: Mapping[str, float]) -> str:
    """Show what agents got of their own, in brackets; of many the first few."""
    own = [(name.removeprefix("agent_reward/"), metrics[name]) for name in metrics if name.startswith("agent_reward/")]
    shown = [f"{agent} {value:+.2f}" for agent, value in own[:MOST_AGENTS]]
    more = [f"{len(own) - MOST_AGENTS} more"] if len(own) > MOST_AGENTS else []
    return f" ({escape(', '.join(shown + more))})" if own else ""


_HEADLINE = {
    "completed": "[bold green]Done[/]",
    "interrupted": "[bold yellow]Stopped; go on with --resume[/]",
    "failed": "[bold red]Failed[/]",
    "learned_nothing": "[bold red]Nothing was learned[/]",
}


def final_table(report: RunReport, causes: Sequence[tuple[Cause, int]] = ()) -> RenderableType:
    """The end of a run as a table. `report.summary` is what `astune.monitor.summary.summarize` gives; `causes` are
    those of the episodes without a reward that this process has seen, with their counts."""
    summary = report.summary
    seconds = summary["seconds"]
    total = sum(seconds.values())
    lines = [localize(f"{_HEADLINE[report.status]} after {report.steps} steps, {show_seconds(total)}")]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    for number, stage in enumerate(summary.get("stages", ()), start=1):
        _add_fact(facts, f"stage {number}", show_stage(stage))
    _add_fact(facts, "episodes", Text.from_markup(localize(_episode_facts(summary))))
    for cause, count in causes:
        _add_fact(facts, "failed", Text.assemble((localize(f"{count:,} times"), "yellow"), " ", localize(str(cause))))
    for name, value in receipt_lines(summary["receipt"]):
        _add_fact(facts, name, value)
    shares = [
        f"{localize(name)} {show_seconds(value)} ({100 * value / total:.0f} %)"
        for name, value in seconds.items()
        if value > 0
    ]
    _add_fact(facts, "time", ", ".join(shares))
    if summary["judging"]:
        _add_fact(facts, "judging", show_judging(summary["judging"]))
    if summary["updates_skipped"]:
        _add_fact(facts, "skipped", f"{summary['updates_skipped']} updates: the loss was NaN or infinite", "yellow")
    if any(summary["groups"].values()):
        _add_fact(facts, "signal", Text.from_markup(localize(_signal(summary["groups"]))))
    if failed_tools := show_tools(summary["tools"]):
        _add_fact(facts, "tools", failed_tools, "yellow")
    if summary["blocked"]:
        lines_blocked = ", ".join(f"{place} {show_seconds(lasted)}" for place, lasted in summary["blocked"].items())
        _add_fact(facts, "blocked", f"the event loop stood still in {lines_blocked}", "yellow")
    if "best_checkpoint" in summary:
        _add_fact(facts, "best", show_best(summary["best_checkpoint"]))
    for name, best in summary.get("best_of_models", {}).items():
        _add_fact(facts, f"best {name}", show_best(best))
    if summary["idle_steps"]:
        _add_fact(facts, "idle", show_idle(summary), "yellow")
    if summary["nothing_learned"]:
        _add_fact(facts, "nothing learned", summary["nothing_learned"], "bold yellow")
    parts: list[RenderableType] = ["", *lines, ""]
    if summary["held_out"]:
        parts += [_make_held_out_table(summary["held_out"]), ""]
    return Group(*(Text.from_markup(part) if isinstance(part, str) else part for part in parts), facts)


def _add_fact(facts: Table, name: str, value: RenderableType, style: str = "") -> None:
    facts.add_row(localize(name), Text(localize(value), style) if isinstance(value, str) else value)


def _episode_facts(summary: Mapping[str, Any]) -> str:
    stops = sorted(summary["stop"].items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{name} {count:,}" for name, count in stops if name != StopReason.COMPLETED.value)
    text = f"{summary['episodes']:,}"
    text += f", [yellow]{summary['failed']:,} failed[/]" if summary["failed"] else ", none failed"
    if summary["unjudged"]:
        text += f", {summary['unjudged']:,} without a verdict"
    return f"{text} ({reasons})" if reasons else text


def _signal(groups: Mapping[str, int]) -> str:
    """Groups that are trained. The others had equal rewards, or no answer that could be trained."""
    total = groups["used"] + groups["no_signal"]
    text = f"{groups['used']:,} of {total:,} groups had something to learn from"
    return text if groups["used"] else f"[yellow]{text}: nothing was learned[/]"


def evaluation_facts(figure: str, values: Mapping[str, float]) -> list[str]:
    """Facts beside a figure of an evaluation: its interval, the number of tasks and attempts, its time.

    >>> evaluation_facts("success", {"success_low": 0.8, "success_high": 1.0, "tasks": 9, "attempts": 9, "unjudged": 0})
    ['(80.0 to 100.0 %)', 'of 9 tasks']
    """
    facts = []
    if f"{figure}_low" in values:
        facts.append(f"({show_interval(figure, values[f'{figure}_low'], values[f'{figure}_high'])})")
    if "tasks" in values:
        facts.append(show_tasks(values["tasks"], values["attempts"], values["unjudged"]))
    passed = [name for name in values if name.startswith("pass_at_") and name.rpartition("_")[2].isdigit()]
    facts += [f"pass@{name.rpartition('_')[2]} {show_figure('success', values[name])}" for name in passed]
    return [*facts, show_seconds(values["seconds"])] if "seconds" in values else facts


def show_tasks(tasks: float, attempts: float, unjudged: float) -> str:
    """
    >>> show_tasks(40, 40, 0), show_tasks(40, 160, 3)
    ('of 40 tasks', 'of 40 tasks, 160 attempts, 3 of them unjudged')
    """
    text = f"of {tasks:,.0f} task{'s' * (tasks != 1)}"
    if attempts != tasks:
        text += f", {attempts:,.0f} attempts"
    return f"{text}, {unjudged:,.0f} of them unjudged" if unjudged else text


def _make_held_out_table(held_out: Mapping[str, Any]) -> Table:
    table = make_table("held-out", "before", "after", "best", "tasks", left=("held-out",))
    for decoding, row in held_out.items():
        first, last, best = (row[name] for name in ("first", "last", "best"))
        before = _show_point(row, first) if first and first["step"] == 0 else "-"
        after = Text(_show_with_interval(row, last), "bold") if last and last["step"] > 0 else "-"
        at = localize(f" step {best['step']}") if best else ""
        tasks = next((f"{point['tasks']:,.0f}" for point in (last, first) if point and "tasks" in point), "-")
        best_shown = Text.assemble(_show_point(row, best), (at, "dim"))
        table.add_row(localize(f"{row['figure']}, {decoding}"), before, after, best_shown, tasks)
    return table


def _show_point(row: Mapping[str, Any], point: Mapping[str, float] | None) -> str:
    return show_figure(row["figure"], point["value"]) if point else "-"


def _show_with_interval(row: Mapping[str, Any], point: Mapping[str, float]) -> str:
    if "low" not in point:
        return _show_point(row, point)
    interval = f"({show_interval(row['figure'], point['low'], point['high'])})"
    return f"{_show_point(row, point)} {localize(interval)}"
