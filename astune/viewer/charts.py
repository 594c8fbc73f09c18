"""Curves as SVG text: no script, no font, no network; light and dark by the reader's own setting.

Path("curve.svg").write_text(curve_svg(read_metrics(run_dir.metrics_path)), "utf-8")
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

from astune.monitor.receipt import Metrics
from astune.monitor.summary import decodings, series, show_figure

Points = Sequence[tuple[int, float]]

SMALL_CHARTS = (
    "reward/mean",
    "loss",
    "held_out/examples/loss",
    "preference/accuracy",
    "preference/margin",
    "grad_norm",
    "entropy",
    "kl/sampler",
    "kl/reference",
    "clip_fraction",
    "tokens/sampled",
    "tokens/trained",
    "tokens/flattened_per_unique",
    "turns/mean",
    "groups/no_signal",
    "curriculum/learning",
    "episodes/failed",
    "time/step",
    "throughput/tokens_per_second",
)
"""Metrics that a page shows as small pictures, where they were logged."""

_OWN = ("agent_reward/", "workflow/")
_OF_MODELS = ("loss", "grad_norm", "entropy", "kl/sampler", "tokens/trained", "won")


def small_charts(names: Collection[str]) -> list[str]:
    """The logged metrics that get a small picture, in order: the rewards of single agents and the workflow's own
    metrics come after the reward, those of several models last."""
    own = [name for prefix in _OWN for name in sorted(names) if name.startswith(prefix)]
    models = sorted({name.split("/")[1] for name in names if name.startswith("model/")})
    of_models = [f"model/{model}/{figure}" for model in models for figure in _OF_MODELS]
    return [name for name in (SMALL_CHARTS[0], *own, *SMALL_CHARTS[1:], *of_models) if name in names]


def name_metric(name: str) -> str:
    """Name a metric of the workflow as the workflow did, unless ASTune has one of that name.

    >>> name_metric("workflow/characters"), name_metric("workflow/loss")
    ('characters', 'workflow/loss')
    """
    own = name.removeprefix("workflow/")
    return name if own in SMALL_CHARTS else own


STYLE = """
.as-chart { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.as-chart .card { fill: #ffffff; stroke: #d8dee6; }
.as-chart text { fill: #57606a; font-variant-numeric: tabular-nums; }
.as-chart .title { fill: #1f2328; font-size: 16px; font-weight: 600; }
.as-chart .strong { fill: #1f2328; font-weight: 600; }
.as-chart .grid { stroke: #eaeef2; }
.as-chart .raw { fill: none; stroke: #6e8bff; stroke-opacity: 0.35; stroke-width: 1.2; }
.as-chart .mean { fill: none; stroke: #4263eb; stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: round; }
.as-chart .sampled { stroke: #0b8f63; fill: #0b8f63; }
.as-chart .greedy { stroke: #d9730d; fill: #ffffff; stroke-width: 2; }
.as-chart .join { fill: none; stroke-dasharray: 2 5; stroke-width: 1.6; }
.as-chart .hit { fill: transparent; }
@media (prefers-color-scheme: dark) {
  .as-chart .card { fill: #0f141a; stroke: #2d353f; }
  .as-chart text { fill: #9aa5b1; }
  .as-chart .title, .as-chart .strong { fill: #e6edf3; }
  .as-chart .grid { stroke: #1f2730; }
  .as-chart .raw { stroke: #7b93ff; stroke-opacity: 0.4; }
  .as-chart .mean { stroke: #8aa0ff; }
  .as-chart .sampled { stroke: #3fd29a; fill: #3fd29a; }
  .as-chart .greedy { stroke: #ffa657; fill: #0f141a; }
}
"""


@dataclass(frozen=True)
class Frame:
    """The plotting area in pixels and the ranges of step and value that it shows."""

    left: float
    top: float
    right: float
    bottom: float
    steps: tuple[float, float]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        return self.left + (self.right - self.left) * (step - self.steps[0]) / (self.steps[1] - self.steps[0])

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * (value - self.values[0]) / (self.values[1] - self.values[0])

    def path(self, points: Points) -> str:
        return "M" + " L".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in points)


def curve_svg(metrics: Metrics, title: str = "Learning curve") -> str:
    """Success (or reward, where the judge knows no success) of training episodes by step, with held-out points."""
    figure = "success" if series(metrics, "success/mean") else "reward"
    training = series(metrics, f"{figure}/mean")
    held_out = {name: series(metrics, f"eval/{name}/{figure}") for name in decodings(metrics)}
    everything = [point for points in (training, *held_out.values()) for point in points]
    frame = _frame(everything, figure)
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>']
    parts.append(f'<text class="title" x="24" y="34">{escape(title)}</text>')
    parts += _axes(frame, figure)
    parts += _training(frame, training, figure)
    for name, points in held_out.items():
        parts += _draw_held_out(frame, name, points, figure)
    parts += _legend(training, held_out, figure)
    return svg(WIDTH, HEIGHT, f"{title}: {figure} by training step", parts)


WIDTH, HEIGHT = 800, 380


def _frame(points: Points, figure: str) -> Frame:
    last = max((step for step, _ in points), default=0)
    if figure == "success":
        values = (0.0, 1.0)
    else:
        ticks = nice_ticks([value for _, value in points])
        values = (ticks[0], ticks[-1])
    return Frame(64, 88, WIDTH - 28, HEIGHT - 48, (0, max(1, last)), values)


def nice_ticks(values: Sequence[float], count: int = 5) -> list[float]:
    """About `count` round numbers, a step of 1, 2 or 5 apart, that enclose all `values`.

    >>> nice_ticks([0.13, 0.87])
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or size < 1e-12:
        half = 0.5 * size if size >= 1e-12 else 0.5
        low, high = low - half, high + half
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def value_axis(frame: Frame, figure: str) -> list[str]:
    """Lines across the plotting area with their values."""
    parts = []
    for tick in nice_ticks(frame.values):
        label = f"{100 * tick:.0f} %" if figure == "success" else f"{tick:g}"
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{frame.left - 10}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    return parts


def _axes(frame: Frame, figure: str) -> list[str]:
    parts = value_axis(frame, figure)
    ticks = [tick for tick in nice_ticks(frame.steps, 8) if tick == int(tick) and tick <= frame.steps[1]]
    for tick in ticks:
        label = f"{tick:.0f} steps" if tick == ticks[-1] else f"{tick:.0f}"
        anchor = "end" if tick == frame.steps[1] else "middle"
        parts.append(f'<text x="{frame.x(tick):.1f}" y="{frame.bottom + 24}" text-anchor="{anchor}">{label}</text>')
    return parts


def _window(points: Points) -> int:
    """Steps on each side in the moving mean."""
    return len(points) // 20


def smooth(points: Points) -> list[tuple[int, float]]:
    """Centred moving mean; near the ends over what there is, alike on both sides, so that it does not lag."""
    half = _window(points)
    means = []
    for index, (step, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)
        part = points[index - reach : index + reach + 1]
        means.append((step, math.fsum(value for _, value in part) / len(part)))
    return means


def _training(frame: Frame, points: Points, figure: str) -> list[str]:
    if not points:
        return []
    parts = [f'<path class="mean" d="{frame.path(smooth(points))}"/>']
    if _window(points):
        parts.insert(0, f'<path class="raw" d="{frame.path(points)}"/>')
    for step, value in points:
        parts.append(_hover(frame, step, value, f"step {step}: {figure} {show_figure(figure, value)}"))
    return parts


def _hover(frame: Frame, step: int, value: float, text: str) -> str:
    """An unseen spot that tells the value where the pointer rests on it."""
    place = f'cx="{frame.x(step):.1f}" cy="{frame.y(value):.1f}"'
    return f'<circle class="hit" {place} r="6"><title>{escape(text)}</title></circle>'


def _draw_held_out(frame: Frame, name: str, points: Points, figure: str) -> list[str]:
    style = escape(name)
    parts = [f'<path class="{style} join" style="fill:none" d="{frame.path(points)}"/>'] if len(points) > 1 else []
    for step, value in points:
        title = escape(f"held-out, {name}, step {step}: {show_figure(figure, value)}")
        parts.append(draw_marker(name, frame.x(step), frame.y(value), title))
    return parts


def draw_marker(name: str, x: float, y: float, title: str = "") -> str:
    """A diamond for the class "greedy", a disc for all others."""
    inner = f"<title>{title}</title>" if title else ""
    if name == "greedy":
        shape = f"M{x:.1f},{y - 6:.1f} l6,6 l-6,6 l-6,-6 z"
        return f'<path class="greedy" d="{shape}">{inner}</path>'
    return f'<circle class="{escape(name)}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">{inner}</circle>'


def _legend(training: Points, held_out: dict[str, list[tuple[int, float]]], figure: str) -> list[str]:
    """One entry for each curve with its first and last value, laid out by estimated text width."""
    entries = []
    if training:
        entries.append(('<path class="mean" d="M0,-4 h18"/>', f"{figure} in training", ""))
    for name, points in held_out.items():
        if points:
            ends = " → ".join(show_figure(figure, value) for _, value in dict.fromkeys((points[0], points[-1])))
            entries.append((draw_marker(name, 9, -4), f"held-out, {name}", ends))
    parts, x = [], 24.0
    for mark, label, ends in entries:
        text = f'<text x="26">{escape(label)} <tspan class="strong">{escape(ends)}</tspan></text>'
        parts.append(f'<g transform="translate({x:.0f},62)">{mark}{text}</g>')
        x += 26 + 6.8 * len(label) + 8.0 * len(ends) + 24
    return parts


@dataclass(frozen=True)
class Area:
    """What a figure fills of a picture of parts, as an SVG path, and its first and last value."""

    name: str
    path: str
    first: float
    last: float


def stack_areas(metrics: Metrics, names: Sequence[str]) -> list[Area]:
    """The areas of figures that are parts of a whole, the first at the bottom, in a picture of 100 by 100; none before
    the second step."""
    rows = [[row["step"], *(row[name] for name in names)] for row in metrics if all(name in row for name in names)]
    if len(rows) < 2:
        return []
    frame = Frame(0, 0, 100, 100, (rows[0][0], rows[-1][0]), (0, max(math.fsum(row[1:]) for row in rows)))
    areas = []
    for place, name in enumerate(names, start=1):
        edges = [[(row[0], math.fsum(row[1:end])) for row in rows] for end in (place, place + 1)]
        path = f"{frame.path(edges[1])} L{frame.path(edges[0][::-1])[1:]} Z"
        areas.append(Area(name.rpartition("/")[2], path, rows[0][place], rows[-1][place]))
    return areas


def svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """A picture of `parts` in the style of all charts; `label` is for readers who do not see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="as-chart" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(label)}">'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"
