"""`report.html`: one page that tells a run, readable offline and years later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from astune.config.schema import Config
from astune.monitor import RunDir, read_metrics, summarize
from astune.monitor.best import best_so_far, figures_so_far
from astune.monitor.disk import writing
from astune.monitor.receipt import Metrics
from astune.monitor.summary import (
    decodings,
    series,
    show_best,
    show_figure,
    show_idle,
    show_interval,
    show_judging,
    show_seconds,
    show_stage,
    show_tools,
    stages_of,
)
from astune.support.statistics import CONFIDENCE, MeanOverTasks, paired_test
from astune.viewer.charts import STYLE, curve_svg, shown_name, small_charts, small_svg
from astune.viewer.content_policy import content_policy
from astune.viewer.heads import Head, read_heads, read_records
from astune.viewer.report.cards import Card, card, credit_of
from astune.viewer.report.chosen import (
    at_step,
    by_kind,
    failures,
    kind_column,
    over_tasks,
    pick_pairs,
    pick_training,
    scores,
)
from astune.viewer.report.receipt import receipt_view
from astune.viewer.run_config import Pieces, config_of, flat, pieces_of

TEMPLATES = Path(__file__).parents[1] / "page"
MOST_DEBUG_EPISODES = 20


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into the folder of a run, finished or not, and returns its path.

    The page needs no network and no other file. Where the model's tokenizer is gone, token ids stand for texts.
    """
    run = RunDir(run_dir)
    metrics = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    config = config_of(run)
    phases = ("debug", "train", *(f"eval/{decoding}" for decoding in decodings(metrics)))
    heads = {phase: read_heads(run_dir, phase) for phase in phases}
    pieces = pieces_of(run, config)
    style, script = ((TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        title=f"{config['astune.project_name']} / {run_dir.name}",
        policy=content_policy([script], [style, STYLE]),
        style=Markup(style),
        script=Markup(script),
        verdict=verdict_line(metrics, heads),
        facts=_facts(metrics, config),
        curve=Markup(curve_svg(metrics)) if metrics else "",
        receipt=receipt_view(metrics),
        small=_small_charts(metrics),
        held_out=held_out_table(metrics, heads),
        failures=failures(heads),
        pairs=_pair_cards(run_dir, heads, pieces),
        training=_training_cards(run_dir, heads["train"], pieces),
        debug=_debug_cards(run_dir, heads["debug"], pieces),
        changed=_changed(config),
        config=config,
    )
    with writing(run.report_path):
        run.report_path.write_text(page, encoding="utf-8", errors="backslashreplace")
    return run.report_path


def _changed(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys that differ from their defaults: key, value, default."""
    defaults = flat(Config().model_dump(mode="json"))
    return [(key, value, defaults.get(key)) for key, value in config.items() if value != defaults.get(key)]


def verdict_line(metrics: Metrics, heads: Mapping[str, Sequence[Head]]) -> str:
    """The outcome of training on held-out tasks in one sentence; the reason why nothing was learned, if that is so."""
    summary = summarize(metrics)
    if summary["nothing_learned"]:
        return f"Nothing was learned: {summary['nothing_learned']}."
    held_out = summary["held_out"]
    for decoding, row in held_out.items():
        first, last = row["first"], row["last"]
        if first and last and first["step"] == 0 and last["step"] > 0:
            ends = " → ".join(show_figure(row["figure"], point["value"]) for point in (first, last))
            word = _change(heads[f"eval/{decoding}"], first, last)
            return f"{word}: held-out {row['figure']} {ends}, {decoding}, after {last['step']} steps."
    rewards = series(metrics, "reward/mean")
    if heads["debug"]:
        share = over_tasks(heads["debug"])
        mean = "none was judged" if share is None else f"mean score {share.mean:.3g}"
        return f"Debug run: {len(heads['debug'])} episodes, {mean}; nothing was trained."
    if not rewards:
        return "No step was finished."
    return f"Mean reward in training {rewards[0][1]:.3f} → {rewards[-1][1]:.3f}; no held-out tasks before and after."


def _change(heads: Sequence[Head], first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Better or worse only where the paired test over tasks finds chance alone in less than 5 % of cases."""
    before, after = (scores(at_step(heads, point["step"])) for point in (first, last))
    differences = [after[task] - before[task] for task in before if task in after]
    if not differences or paired_test(differences).p >= 1 - CONFIDENCE:
        return "No clear change"
    return "Better" if sum(differences) > 0 else "Worse"


def _facts(metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures under the title. A debug run has no metrics, so only what it ran with."""
    ran_with = [
        ("model", str(config["astune.model.path"])),
        ("workflow", str(config["astune.rollout.agentscope_learn_protocol"])),
    ]
    if not metrics:
        return ran_with
    summary = summarize(metrics)
    seconds, groups, tokens = summary["seconds"], summary["groups"], summary["tokens"]
    total = sum(seconds.values())
    shares = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in seconds.items() if value > 0)
    failed = f"{summary['failed']:,} failed" if summary["failed"] else "none failed"
    return [
        *ran_with,
        ("steps", str(summary["steps"])),
        *_stages(metrics, config),
        ("episodes", f"{summary['episodes']:,} ({failed})"),
        ("tokens", f"{tokens['sampled']:,} sampled, {tokens['trained']:,} trained"),
        ("groups with something to learn from", f"{groups['used']:,} of {sum(groups.values()):,}"),
        *([("tools", failed_tools)] if (failed_tools := show_tools(summary["tools"])) else []),
        *([("idle", show_idle(summary))] if summary["idle_steps"] else []),
        *([("judging", show_judging(summary["judging"]))] if summary["judging"] else []),
        *_best(metrics, config),
        ("time", f"{show_seconds(total)} ({shares})" if total else "-"),
    ]


def _stages(metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    common = str(config.get("astune.algorithm.method"))
    given = config.get("astune.stages") or []
    methods = [str((stage.get("algorithm") or {}).get("method", common)) for stage in given]
    stages = enumerate(stages_of(metrics, methods), start=1)
    return [(f"stage {number}", show_stage(stage)) for number, stage in stages]


def _best(metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    figures = figures_so_far(config.get("astune.trainer.keep_best"), config.get("astune.stages"), metrics)
    best = best_so_far(metrics, figures)
    if best is None:
        return []
    path = f"checkpoints/step_{best.step:06d}"
    return [("best", show_best({"figure": figures[-1], "step": best.step, "value": best.value, "path": path}))]


def _small_charts(metrics: Metrics) -> list[Markup]:
    curves = [(key, series(metrics, key)) for key in small_charts({key for row in metrics for key in row})]
    return [Markup(small_svg(shown_name(key), points)) for key, points in curves if len(points) > 1]


@dataclass(frozen=True)
class HeldOutRow:
    """One line of the held-out table. `kind` is None for the line of all tasks."""

    decoding: str
    kind: str | None
    figure: str
    before: MeanOverTasks | None
    after: MeanOverTasks | None

    def shown(self, found: MeanOverTasks | None) -> str:
        if found is None:
            return "-"
        between = "" if found.interval is None else f" ({show_interval(self.figure, *found.interval)})"
        return f"{show_figure(self.figure, found.mean)}{between}"


def held_out_table(metrics: Metrics, heads: Mapping[str, Sequence[Head]]) -> list[HeldOutRow]:
    """Before and after per decoding, then per kind of task where the tasks' rows name kinds."""
    rows = []
    for decoding, entry in summarize(metrics)["held_out"].items():
        episodes = heads[f"eval/{decoding}"]
        steps = sorted({head.step for head in episodes})
        if not steps:
            continue
        before, after = (at_step(episodes, step) for step in (steps[0], steps[-1]))
        before, after = (before if steps[0] == 0 else []), (after if steps[-1] > 0 else [])
        rows.append(HeldOutRow(decoding, None, entry["figure"], over_tasks(before), over_tasks(after)))
        column = kind_column(after or before)
        if column is not None:
            kinds = by_kind(before, column), by_kind(after, column)
            names = sorted(kinds[0].keys() | kinds[1].keys())
            shares = [[over_tasks(kind.get(name, [])) for kind in kinds] for name in names]
            rows += [HeldOutRow(decoding, n, entry["figure"], *pair) for n, pair in zip(names, shares, strict=True)]
    return rows


@dataclass(frozen=True)
class PairCards:
    """One held-out task before and after."""

    story: str
    query: str
    before: Card
    after: Card


def _pair_cards(run: Path, heads: Mapping[str, Sequence[Head]], pieces: Pieces | None) -> list[PairCards]:
    """By greedy decoding where there is one: no luck in it."""
    phases = [phase for phase in ("eval/greedy", "eval/sampled") if heads.get(phase)]
    if not phases:
        return []
    pairs = pick_pairs(heads[phases[0]])
    records = read_records(run, phases[0], [head for pair in pairs for head in (pair.before, pair.after)])
    shown = []
    for number, pair in enumerate(pairs):
        cards = [
            card(f"pair{number}{when}", f"{when}: step {head.step}", records[head.line].episode, pieces)
            for when, head in (("before", pair.before), ("after", pair.after))
        ]
        shown.append(PairCards(pair.story, records[pair.after.line].episode.task.query, *cards))
    return shown


def _training_cards(run: Path, heads: Sequence[Head], pieces: Pieces | None) -> dict[int, list[Card]]:
    chosen = pick_training(heads)
    compared = [head for examples in chosen.values() for example in examples for head in example.group]
    records = read_records(run, "train", compared)
    shown: dict[int, list[Card]] = {}
    for step, examples in chosen.items():
        shown[step] = []
        for number, example in enumerate(examples):
            heading = f"one of {len(example.group)} attempts at {example.head.task_id}"
            episode = records[example.head.line].episode
            credit = credit_of(episode, [records[head.line].episode for head in example.group])
            shown[step].append(card(f"step{step}n{number}", heading, episode, pieces, credit))
    return shown


def _debug_cards(run: Path, heads: Sequence[Head], pieces: Pieces | None) -> list[Card]:
    shown = heads[:MOST_DEBUG_EPISODES]
    records = read_records(run, "debug", shown)
    return [card(f"debug{h.line}", records[h.line].episode.episode_id, records[h.line].episode, pieces) for h in shown]
