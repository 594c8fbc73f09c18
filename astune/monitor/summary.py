"""From the lines of `metrics.jsonl` to the few figures that say how a run went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from astune.config.evaluation import aim_of, is_success, split_figure
from astune.monitor import blocking
from astune.monitor.checkpoint_names import best_so_far
from astune.monitor.metrics import read_metrics
from astune.monitor.nothing_learned import idle_steps, nothing_learned
from astune.monitor.receipt import Metrics, sum_of_receipts
from astune.monitor.run_dir import RunDir
from astune.support.statistics import MeanOverTasks, PairedTest
from astune.types import RunReport, ToolCause


def report_of(
    run_dir: RunDir,
    steps: int,
    status: Literal["completed", "interrupted", "failed"],
    keep_best: Mapping[str, Sequence[str | None]] | None = None,
    methods: Sequence[str] = (),
) -> RunReport:
    """The report of the run in `run_dir`, which ended after `steps` steps, with the figures that it logged. With
    `keep_best`, the figures by which checkpoints are kept (with stages those of each so far), the summary has the best
    of the run as `best_checkpoint`, and those of models by their names as `best_of_models`; `methods` are those of its
    stages, if it has any, and the summary has `stages`."""
    metrics = read_metrics(run_dir.metrics_path)
    summary = summarize(metrics) | {"stages": stages_of(metrics, methods)}
    found = {
        name: {
            "figure": figures[-1],
            "step": best.step,
            "value": best.value,
            "path": str(run_dir.checkpoint_path(best.step)),
        }
        for name, figures in (keep_best or {}).items()
        if (best := best_so_far(metrics, figures)) is not None
    }
    if "" in found:
        summary["best_checkpoint"] = found.pop("")
    if found:
        summary["best_of_models"] = found
    in_vain = status == "completed" and summary["nothing_learned"]
    return RunReport(run_dir.path, steps, "learned_nothing" if in_vain else status, summary)


def series(metrics: Metrics, key: str) -> list[tuple[int, float]]:
    """The points (step, value) of one figure, where it was logged and finite."""
    return [(row["step"], row[key]) for row in metrics if row.get(key) is not None]


def decodings(metrics: Metrics) -> list[str]:
    """The evaluations of a run in the order of their first: ways of decoding as "greedy", of a set of held-out tasks
    with a name as "hard/greedy"."""
    keys = dict.fromkeys(key for row in metrics for key in row if key.startswith("eval/"))
    return list(dict.fromkeys(split_figure(key)[0].removeprefix("eval/") for key in keys))


def figures_in(row: Mapping[str, Any], decoding: str) -> dict[str, MeanOverTasks]:
    """The figures of an evaluation in a line of the metrics, as `rollout.metrics.name_ends` wrote them; of
    a run of before intervals were told, none.

    >>> row = {"step": 5, "eval/greedy/turns": 2.5, "eval/greedy/turns_tasks": 8.0, "eval/greedy/tasks": 9.0}
    >>> figures_in(row, "greedy")
    {'turns': MeanOverTasks(mean=2.5, interval=None, n=8)}
    """
    own = {name: row[key] for key in row if (name := _own_name(key, decoding)) is not None and _is_number(row[key])}
    figures = [name for name in own if f"{name}_tasks" in own]
    found = {}
    for name in figures:
        low, high, tasks = (None if f"{name}_{e}" in figures else own.get(f"{name}_{e}") for e in ENDS)
        found[name] = MeanOverTasks(own[name], None if low is None or high is None else (low, high), int(tasks or 0))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


ENDS = ("low", "high", "tasks")


def _own_name(key: str, decoding: str) -> str | None:
    evaluation, name = split_figure(key)
    return name if evaluation == f"eval/{decoding}" else None


def summarize(metrics: Metrics) -> dict[str, Any]:
    """The figures of the final table, of the report's head and of `RunReport.summary`.

    `held_out` has one entry per evaluation, as `decodings` names them: the figure (`success`, or `reward` where the
    judge knows no success) at the first, last and best, each with its step, its interval (`low`, `high`) and `tasks`.
    Counts are sums over steps; `seconds` says where the time went, `receipt` where the tokens did, `judging` what other
    models cost that judge, `blocked` which lines of the user's blocked the event loop, `idle_steps` why steps trained
    nothing, `nothing_learned` why none did, "" if one did.
    """
    why = nothing_learned(metrics)
    seconds = {name: _total(metrics, f"time/{name}") for name in ("rollout", "train", "step")}
    evaluation = sum(_total(metrics, f"eval/{decoding}/seconds") for decoding in decodings(metrics))
    stops = sorted({key for row in metrics for key in row if key.startswith("stop/")})
    return {
        "held_out": {decoding: _summarize_held_out(metrics, decoding) for decoding in decodings(metrics)},
        "steps": max((step for step, _ in series(metrics, "time/step")), default=0),
        "episodes": int(_total(metrics, "episodes/total")),
        "failed": int(_total(metrics, "episodes/failed")),
        "unjudged": int(_total(metrics, "episodes/unjudged")),
        "stop": {key.removeprefix("stop/"): int(_total(metrics, key)) for key in stops if _total(metrics, key)},
        "tokens": {name: int(_total(metrics, f"tokens/{name}")) for name in ("prompt", "sampled", "trained")},
        "receipt": sum_of_receipts(metrics),
        "groups": {name: int(_total(metrics, f"groups/{name}")) for name in ("used", "no_signal")},
        "judging": _judging(metrics),
        "blocked": sum_blocked(metrics),
        "tools": _tools(metrics),
        "idle_steps": {reason.what: count for reason, count in idle_steps(metrics)},
        "nothing_learned": "" if why is None else str(why),
        "updates_skipped": int(_total(metrics, "updates/skipped")),
        "seconds": {
            "rollout": seconds["rollout"],
            "training": seconds["train"],
            "evaluation": evaluation,
            "other": max(0.0, seconds["step"] - seconds["rollout"] - seconds["train"]),
        },
    }


def stages_of(metrics: Metrics, methods: Sequence[str]) -> list[dict[str, Any]]:
    """The stages of a run: for each its `method`, its steps, and for each evaluation the figure after the last step."""
    found = []
    for number, method in enumerate(methods, start=1):
        steps = [row["step"] for row in metrics if row.get("stage") == number]
        held_out: dict[str, tuple[str, float]] = {}
        for decoding in decodings(metrics) if steps else ():
            figure = "success" if series(metrics, f"eval/{decoding}/success") else "reward"
            value = dict(series(metrics, f"eval/{decoding}/{figure}")).get(steps[-1])
            held_out |= {} if value is None else {decoding: (figure, value)}
        found.append({"method": method, "steps": (steps[0], steps[-1]) if steps else None, "held_out": held_out})
    return found


def show_stage(stage: Mapping[str, Any]) -> str:
    """
    >>> show_stage({"method": "sft", "steps": (1, 20), "held_out": {"greedy": ("success", 0.61)}})
    'sft, steps 1 to 20, held-out 61.0 % (greedy)'
    >>> show_stage({"method": "rl", "steps": None, "held_out": {}})
    'rl, not begun'
    """
    if stage["steps"] is None:
        return f"{stage['method']}, not begun"
    first, last = stage["steps"]
    text = f"{stage['method']}, steps {first} to {last}"
    held_out = stage["held_out"].items()
    figures = ", ".join(f"{show_figure(figure, value)} ({decoding})" for decoding, (figure, value) in held_out)
    return f"{text}, held-out {figures}" if figures else text


def _judging(metrics: Metrics) -> dict[str, float]:
    """Sums over steps and evaluations; empty if no model judged, without `cost` if that is not known of all."""
    prefixes = ("judging/", *(f"eval/{decoding}/judging_" for decoding in decodings(metrics)))
    points = {
        name: [value for prefix in prefixes for _, value in series(metrics, prefix + name)]
        for name in ("calls", "cached", "tokens", "cost")
    }
    complete = len(points["cost"]) == len(points["calls"])
    return {name: sum(values) for name, values in points.items() if values and (name != "cost" or complete)}


def show_judging(judging: Mapping[str, float]) -> str:
    """
    >>> show_judging({"calls": 1200, "cached": 30, "tokens": 45000, "cost": 0.1234})
    '1,200 calls of other models, 30 replies from the cache, 45,000 tokens, cost 0.1234'
    """
    calls, cached, tokens = (round(judging[name]) for name in ("calls", "cached", "tokens"))
    cost = f"cost {judging['cost']:.4g}" if "cost" in judging else "cost not known"
    return f"{calls:,} calls of other models, {cached:,} replies from the cache, {tokens:,} tokens, {cost}"


def sum_blocked(metrics: Metrics) -> dict[str, float]:
    """Seconds for which lines of the user's code, `file:line`, kept the event loop from turning, the worst first. Short
    ones, of which a run does not warn, are left out: on a busy machine any line takes its tenth of a second."""
    keys = {key for row in metrics for key in row if key.startswith("blocked/")}
    seconds = {key.partition("/")[2]: _total(metrics, key) for key in keys}
    return dict(
        sorted(((place, n) for place, n in seconds.items() if n >= blocking.NOTICED), key=lambda item: -item[1])
    )


def _tools(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """The tools that were called: for each its calls, its errors, their causes if any is known, the steps in which
    every call failed, and the last step in which it was offered (None if it still was, or not at every step before).
    Tools that failed most come first."""
    names = {key.removeprefix("tools/calls/") for row in metrics for key in row if key.startswith("tools/calls/")}
    played = [step for step, _ in series(metrics, "episodes/total")]
    uses: dict[str, dict[str, Any]] = {}
    for name in names:
        errors = dict(series(metrics, f"tools/errors/{name}"))
        calls = series(metrics, f"tools/calls/{name}")
        throughout = [step for step, count in calls if count and errors.get(step) == count]
        uses[name] = {"calls": int(sum(count for _, count in calls)), "errors": int(sum(errors.values()))}
        offered = [step for step, _ in series(metrics, f"tools/offered/{name}")]
        ends = offered == played[: len(offered)] and 0 < len(offered) < len(played)
        causes = {cause: int(_total(metrics, f"tools/causes/{cause}/{name}")) for cause in get_args(ToolCause)}
        if any(causes.values()):
            uses[name]["causes"] = {cause: count for cause, count in causes.items() if count}
        uses[name] |= {"throughout": throughout, "last_offered": offered[-1] if ends else None}
    return dict(sorted(uses.items(), key=lambda item: (-item[1]["errors"], item[0])))


def show_tools(tools: Mapping[str, Mapping[str, Any]], first: Mapping[str, str] | None = None) -> str:
    """Show the tools that failed or are gone. `first` has the message of a tool's first step in which every call
    failed.

    >>> show_tools({"search": {"calls": 40, "errors": 40}, "calculator": {"calls": 9, "errors": 0}})
    '40 of 40 calls of search failed'
    >>> show_tools({"search": {"calls": 40, "errors": 30, "throughout": [3, 4, 7]}}, {"search": "no network"})
    '30 of 40 calls of search failed, in 3 steps, 3 to 7, all of them, as here: no network'
    >>> show_tools({"search": {"calls": 40, "errors": 30, "causes": {"said_no": 28, "time_limit": 2}}})
    '30 of 40 calls of search failed (28 said no, 2 time limit)'
    """
    failed = [_show_failed_tool(name, use, (first or {}).get(name)) for name, use in tools.items() if use["errors"]]
    gone = [(name, step) for name, use in tools.items() if (step := use.get("last_offered")) is not None]
    return ", ".join([*failed, *(f"{name} was not offered any more after step {step}" for name, step in gone)])


def show_causes(causes: Mapping[ToolCause, int]) -> str:
    """
    >>> show_causes({"said_no": 1200, "time_limit": 2})
    '1,200 said no, 2 time limit'
    """
    return ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in causes.items())


def _show_failed_tool(name: str, use: Mapping[str, Any], first: str | None) -> str:
    text = f"{use['errors']:,} of {use['calls']:,} calls of {name} failed"
    if causes := use.get("causes"):
        text += f" ({show_causes(causes)})"
    if (steps := use.get("throughout")) and use["errors"] < use["calls"]:
        text += f", in step {steps[0]}" if len(steps) == 1 else f", in {len(steps)} steps, {steps[0]} to {steps[-1]},"
        text += " all of them"
    return f"{text}, as here: {first:.300}" if first else text


def show_idle(summary: Mapping[str, Any]) -> str:
    """
    >>> show_idle({"steps": 20, "idle_steps": {"no episode was judged": 3}})
    '3 of 20 steps taught nothing: no episode was judged (3)'
    """
    idle = summary["idle_steps"]
    reasons = "; ".join(f"{what} ({count:,})" for what, count in idle.items())
    return f"{sum(idle.values()):,} of {summary['steps']:,} steps taught nothing: {reasons}"


def _summarize_held_out(metrics: Metrics, decoding: str) -> dict[str, Any]:
    figure = "success" if series(metrics, f"eval/{decoding}/success") else "reward"
    points = series(metrics, f"eval/{decoding}/{figure}")
    named = {"first": points[:1], "last": points[-1:], "best": sorted(points, key=lambda p: (-p[1], p[0]))[:1]}
    rows = {name: _point(metrics, f"eval/{decoding}/{figure}", found) for name, found in named.items()}
    return {"figure": figure, **rows}


def _point(metrics: Metrics, key: str, found: list[tuple[int, float]]) -> dict[str, Any] | None:
    """The figure `key` at a step, with its interval and its number of tasks, where they were logged."""
    if not found:
        return None
    step, value = found[0]
    others = {name: dict(series(metrics, f"{key}_{name}")).get(step) for name in ("low", "high", "tasks")}
    return {"step": step, "value": value, **{name: other for name, other in others.items() if other is not None}}


def _total(metrics: Metrics, key: str) -> float:
    return sum(value for _, value in series(metrics, key))


def show_figure(figure: str, value: float) -> str:
    """
    >>> show_figure("success", 0.4667), show_figure("reward", 0.4667), show_figure("tokens/sampled", 1234.5678)
    ('46.7 %', '0.467', '1,234.6')
    """
    if is_success(figure):
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def show_best(best: Mapping[str, Any]) -> str:
    """
    >>> show_best({"figure": "eval/greedy/success", "step": 40, "value": 0.9, "path": "checkpoints/step_000040"})
    'step 40, by eval/greedy/success 90.0 %: checkpoints/step_000040'
    """
    aim = aim_of(best["figure"])
    by = f"the lowest {aim.figure}" if aim.lowest else aim.figure
    shown = show_figure(split_figure(aim.figure)[1], best["value"])
    return f"step {best['step']}, by {by} {shown}: {best['path']}"


def show_interval(figure: str, low: float, high: float) -> str:
    """
    >>> show_interval("success", 0.4, 0.5333), show_interval("reward", 0.4, 0.5333)
    ('40.0 to 53.3 %', '0.400 to 0.533')
    """
    if is_success(figure):
        return f"{100 * low:.1f} to {100 * high:.1f} %"
    return f"{show_figure(figure, low)} to {show_figure(figure, high)}"


def show_interval_of(figure: str, found: MeanOverTasks | None) -> str:
    """
    >>> show_interval_of("reward", MeanOverTasks(0.5, (0.4, 0.6), 8)), show_interval_of("reward", None)
    ('0.400 to 0.600', '-')
    """
    return "-" if found is None or found.interval is None else show_interval(figure, *found.interval)


def show_p(test: PairedTest) -> str:
    """
    >>> show_p(PairedTest(0.0312, True, 9)), show_p(PairedTest(1e-9, True, 400)), show_p(PairedTest(0.0312, False, 9))
    ('0.031', '< 0.001', '~0.031')
    """
    text = "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"
    return text if test.exact else f"~{text}"


def show_seconds(seconds: float) -> str:
    """
    >>> show_seconds(7.2), show_seconds(151), show_seconds(3725)
    ('7 s', '2:31', '1:02:05')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
