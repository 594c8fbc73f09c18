"""The pages of `astune online ui`: an overview of the store, and the lineage of an answer or a version."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from astune.errors import StoreError
from astune.online.store import aliases, overview, releases, versions
from astune.online.store.feedback.rules import STATES
from astune.online.store.trace import AnswerTrace, trace
from astune.online.store.versions import ModelVersion
from astune.store.database import Database
from astune.support.http.browser_requests import Guarded
from astune.viewer.charts import STYLE, Frame, nice_ticks, svg, value_axis
from astune.viewer.page import content_policy, read_parts, render
from astune.viewer.serve import guard_pages, page_headers

PAGE = Path(__file__).parent / "page"
DAY = 86400.0
WIDTH, HEIGHT = 560, 220
"""Of the picture of a release."""
MOST_RELEASES, MOST_ANSWERS, MOST_LINES = 20, 20, 100


def operator_app(database: Database, options: str) -> Guarded:
    """An app with the pages. It reads and never writes. `options` name the store in the commands that pages show."""

    async def answer(request: Request) -> HTMLResponse:
        text = await run_in_threadpool(database.read, partial(overview_page, options=options, now=time.time()))
        return HTMLResponse(text, headers=page_headers(_inline()[2]))

    async def answer_trace(request: Request) -> HTMLResponse:
        page = partial(trace_page, text=request.query_params.get("id", ""))
        text, status = await run_in_threadpool(database.read, page)
        return HTMLResponse(text, status, headers=page_headers(_inline()[2]))

    return guard_pages([Route("/", answer), Route("/trace", answer_trace)])


def overview_page(connection: sa.Connection, options: str, now: float) -> str:
    """Versions as a tree, traffic, releases, feedback, the newest answers and the audit."""
    made = versions.every(connection)
    named: dict[int, list[str]] = {}
    for alias in aliases.every_alias(connection):
        named.setdefault(alias.version, []).append(alias.name)
    answers = overview.answers_by_version(connection)
    tested = releases.recent(connection, MOST_RELEASES)
    return _render(
        "overview.html.j2",
        command=lambda words: f"astune online {words} {options}",
        tree=[
            (depth, version, named.get(version.number, []), answers.get(version.number, 0))
            for depth, version in order_tree(made)
        ],
        traffic=sorted(overview.traffic_by_version(connection, now - DAY).items(), reverse=True),
        releases=[
            (each, Markup(sequence_svg(each.figures.get("looks", []), f"v{each.challenger} less v{each.champion}")))
            for each in tested
        ],
        feedback=overview.feedback_by_source(connection),
        states=STATES,
        answers=overview.newest_answers(connection, MOST_ANSWERS),
        lines=overview.newest_lines(connection, MOST_LINES),
    )


def trace_page(connection: sa.Connection, text: str) -> tuple[str, int]:
    """The lineage of an answer or a version, and the HTTP status."""
    try:
        found = trace(connection, text.strip())
    except StoreError as error:
        return _render("trace.html.j2", id=text, error=str(error), found=None, is_answer=False), 404
    return _render("trace.html.j2", id=text, error="", found=found, is_answer=isinstance(found, AnswerTrace)), 200


def order_tree(made: list[ModelVersion]) -> list[tuple[int, ModelVersion]]:
    """Versions, each after the one that it was made from, with their depth. The newest child comes last.

    >>> tree = [ModelVersion(0), ModelVersion(1, 0), ModelVersion(2, 1), ModelVersion(3, 1)]
    >>> [(depth, version.number) for depth, version in order_tree(tree)]
    [(0, 0), (1, 1), (2, 2), (2, 3)]
    """
    known = {version.number for version in made}
    children: dict[int | None, list[ModelVersion]] = {}
    for version in made:
        children.setdefault(version.parent if version.parent in known else None, []).append(version)
    found: list[tuple[int, ModelVersion]] = []
    waiting = [(0, version) for version in reversed(children.get(None, []))]
    while waiting:
        depth, version = waiting.pop()
        found.append((depth, version))
        waiting += [(depth + 1, child) for child in reversed(children.get(version.number, []))]
    return found


def _render(template: str, **values: Any) -> str:
    style, script, policy = _inline()
    shared: Mapping[str, Callable[..., str]] = {"when": _time, "as_json": _as_json, "figures": _figures}
    return render(template, folder=PAGE, style=Markup(style), script=Markup(script), policy=policy, **shared, **values)


@cache
def _inline() -> tuple[str, str, str]:
    """Style, script and policy of the pages."""
    style = read_parts("css", ("base", "story")) + "\n" + read_parts("css", ("operator",), PAGE)
    script = f'"use strict";\n(() => {{\n{read_parts("js", ("dom", "theme"))}\nbuildTheme();\n}})();\n'
    return style, script, content_policy([script], [style, STYLE], asks=True)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=asdict)


def _figures(values: Mapping[str, Any]) -> str:
    """A few figures of a version in one line."""
    told = [
        (name, values[name])
        for name in ("reward", "reward/mean", "kl/from_version_before", "authors")
        if name in values
    ]
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, (int, float)) else f"{name} {value}" for name, value in told
    )


def sequence_svg(looks: Sequence[Mapping[str, Any]], title: str) -> str:
    """Draw a release: the difference, challenger less champion, of each look that has one, with its confidence
    sequence; "" where none has.

    A look, of `figures` of a release: `{"metric": {"champion", "challenger", "low", "high"}, "users", "stage"}`.
    """
    known = [look for look in looks if look.get("metric")]
    if not known:
        return ""
    ends = [float(look["metric"][end]) for look in known for end in ("low", "high")]
    ticks = nice_ticks([0.0, *ends])
    frame = Frame(64, 40, WIDTH - 20, HEIGHT - 26, (0, max(1, len(known) - 1)), (ticks[0], ticks[-1]))
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>']
    parts.append(f'<text class="strong" x="20" y="24">{escape(title)}</text>')
    parts += value_axis(frame, "difference")
    parts.append(
        f'<path class="raw" style="stroke-dasharray:4 4" d="{frame.path([(0, 0.0), (int(frame.steps[1]), 0.0)])}"/>'
    )
    points = []
    for number, look in enumerate(known):
        metric = look["metric"]
        difference = float(metric["challenger"]) - float(metric["champion"])
        points.append((number, difference))
        x, low, high = frame.x(number), frame.y(float(metric["low"])), frame.y(float(metric["high"]))
        told = f"look {number + 1}: {difference:+.3g} ({float(metric['low']):+.3g} to {float(metric['high']):+.3g})"
        parts.append(f'<line class="sampled" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        parts.append(
            f'<circle class="sampled" cx="{x:.1f}" cy="{frame.y(difference):.1f}" r="3.5">'
            f"<title>{escape(told)}</title></circle>"
        )
    parts.append(f'<path class="mean" d="{frame.path(points)}"/>')
    parts.append(f'<text x="{frame.left}" y="{HEIGHT - 8}">looks, the first to the last</text>')
    return svg(WIDTH, HEIGHT, title, parts)
