"""`report.html`: one page that tells a run, readable offline and years later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from astune.config.schema import Config
from astune.monitor import RunDir, read_metrics, summarize
from astune.monitor.checkpoint_names import best_so_far, figures_so_far
from astune.monitor.disk import writing
from astune.monitor.receipt import Metrics
from astune.monitor.summary import (
    decodings,
    series,
    show_best,
    show_figure,
    show_idle,
    show_judging,
    show_seconds,
    show_stage,
    show_tools,
    stages_of,
)
from astune.monitor.words import METRICS
from astune.support.statistics import CONFIDENCE, MeanOverTasks, paired_test
from astune.viewer.charts import STYLE, curve_svg, name_metric, small_charts, small_svg
from astune.viewer.content_policy import content_policy
from astune.viewer.heads import Head, first_failures, read_heads, read_records
from astune.viewer.held_out import figure_rows, show_mean
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
        verdict=verdict_line(metrics, heads, _methods(config)),
        facts=_facts(run_dir, metrics, config),
        curve=Markup(curve_svg(metrics)) if metrics else "",
        receipt=receipt_view(metrics),
        small=_small_charts(metrics),
        words=_words(metrics),
        held_out=make_held_out_rows(metrics, heads),
        figures=figure_rows(metrics),
        failures=failures(heads),
        pairs=_pair_cards(run_dir, heads, pieces),
        training=_training_cards(run_dir, heads["train"], pieces),
        debug=_debug_cards(run_dir, heads["debug"], pieces),
        changed=_list_changed(config),
        config=config,
    )
    with writing(run.report_path):
        run.report_path.write_text(page, encoding="utf-8", errors="backslashreplace")
    return run.report_path


def _list_changed(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys that differ from their defaults: key, value, default."""
    defaults = flat(Config().model_dump(mode="json"))
    return [(key, value, defaults.get(key)) for key, value in config.items() if value != defaults.get(key)]


def verdict_line(metrics: Metrics, heads: Mapping[str, Sequence[Head]], methods: Sequence[str] = ()) -> str:
    """The outcome of training on held-out tasks: a sentence for all ways of decoding, and one for each that was better
    before, at a stage's end or at its best. The reason why nothing was learned, if that is so. `methods` are those of
    the stages, if there are any."""
    summary = summarize(metrics)
    if summary["nothing_learned"]:
        return f"Nothing was learned: {summary['nothing_learned']}."
    compared = {
        decoding: row
        for decoding, row in summary["held_out"].items()
        if row["first"] and row["first"]["step"] == 0 and row["last"]["step"] > 0
    }
    if compared:
        return " ".join([_outcome(compared, heads), *_falls(metrics, compared, heads, methods)])
    rewards = series(metrics, "reward/mean")
    if heads["debug"]:
        share = over_tasks(heads["debug"])
        mean = "none was judged" if share is None else f"mean score {share.mean:.3g}"
        return f"Debug run: {len(heads['debug'])} episodes, {mean}; nothing was trained."
    if not rewards:
        return _without_rewards(metrics)
    return f"Mean reward in training {rewards[0][1]:.3f} → {rewards[-1][1]:.3f}; no held-out tasks before and after."


def _outcome(compared: Mapping[str, Mapping[str, Any]], heads: Mapping[str, Sequence[Head]]) -> str:
    """One sentence: the ways of decoding in which it is clear that something changed come first."""
    words = {
        decoding: _change(heads[f"eval/{decoding}"], row["first"]["step"], row["last"]["step"])
        for decoding, row in compared.items()
    }
    clear = dict.fromkeys(word for word in words.values() if word != NO_CHANGE)
    word = " and ".join(sorted(clear)) or NO_CHANGE
    parts, figure = [], ""
    for decoding in sorted(compared, key=lambda decoding: words[decoding] == NO_CHANGE):
        row = compared[decoding]
        ends = " → ".join(show_figure(row["figure"], point["value"]) for point in (row["first"], row["last"]))
        named = "" if row["figure"] == figure else f"{row['figure']} "
        figure = row["figure"]
        unlike = "" if words[decoding] == word else f" ({words[decoding].lower()})"
        parts.append(f"{named}{ends}, {decoding}{unlike}")
    steps = max(row["last"]["step"] for row in compared.values())
    return f"{word.capitalize()}: held-out {'; '.join(parts)}, after {steps} steps."


def _falls(
    metrics: Metrics,
    compared: Mapping[str, Mapping[str, Any]],
    heads: Mapping[str, Sequence[Head]],
    methods: Sequence[str],
) -> list[str]:
    """Sentences about figures that fell again: from one stage to the next, else from the best evaluation to the
    last."""
    ends = [0, *(stage["steps"][1] for stage in stages_of(metrics, methods) if stage["steps"])]
    said = []
    for decoding, row in compared.items():
        evaluated, points = heads[f"eval/{decoding}"], dict(series(metrics, f"eval/{decoding}/{row['figure']}"))

        def fell(start: int, end: int, evaluated: Sequence[Head] = evaluated) -> bool:
            return _change(evaluated, start, end) == "Worse"

        def show(*steps: int, points: Mapping[int, float] = points, figure: str = row["figure"]) -> str:
            return " to ".join(show_figure(figure, points[step]) for step in steps)

        what, best, last = f"{decoding} {row['figure']}", row["best"]["step"], row["last"]["step"]
        stages = [
            f"Stage {number} ({methods[number - 1]}) took {what} from {show(start, end)}."
            for number, (start, end) in enumerate(pairwise(ends), start=1)
            if start in points and end in points and fell(start, end)
        ]
        if not stages and best not in (0, last) and fell(best, last):
            stages = [f"After step {best} {what} fell from {show(best, last)}."]
        said += stages
    return said


def _without_rewards(metrics: Metrics) -> str:
    """The outcome of a run that learned from examples or preferences and played no tasks."""
    known = {
        "preference/accuracy": "share of pairs in which the better answer gained more",
        "held_out/examples/loss": "loss of held-out examples",
        "loss": "loss in training",
    }
    curves = {words: series(metrics, key) for key, words in known.items()}
    said = [f"{words} {points[0][1]:.3g} → {points[-1][1]:.3g}" for words, points in curves.items() if points]
    return f"{'; '.join(said).capitalize()}; no held-out tasks before and after." if said else "No step was finished."


NO_CHANGE = "No clear change"


def _change(heads: Sequence[Head], first: int, last: int) -> str:
    """Better or worse only where the paired test over tasks finds chance alone in less than 5 % of cases."""
    before, after = (scores(at_step(heads, step)) for step in (first, last))
    differences = [after[task] - before[task] for task in before if task in after]
    if not differences or paired_test(differences).p >= 1 - CONFIDENCE:
        return NO_CHANGE
    return "Better" if sum(differences) > 0 else "Worse"


def _facts(run_dir: Path, metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
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
    throughout = {name: use["throughout"][0] for name, use in summary["tools"].items() if use["throughout"]}
    failed_tools = show_tools(summary["tools"], first_failures(run_dir, throughout))
    shares = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in seconds.items() if value > 0)
    failed = f"{summary['failed']:,} failed" if summary["failed"] else "none failed"
    return [
        *ran_with,
        ("steps", str(summary["steps"])),
        *_stages(metrics, config),
        ("episodes", f"{summary['episodes']:,} ({failed})"),
        ("tokens", f"{tokens['sampled']:,} sampled, {tokens['trained']:,} trained"),
        ("groups with something to learn from", f"{groups['used']:,} of {sum(groups.values()):,}"),
        *([("tools", failed_tools)] if failed_tools else []),
        *([("idle", show_idle(summary))] if summary["idle_steps"] else []),
        *([("judging", show_judging(summary["judging"]))] if summary["judging"] else []),
        *_preferences(metrics),
        *_best(metrics, config),
        ("time", f"{show_seconds(total)} ({shares})" if total else "-"),
    ]


def _preferences(metrics: Metrics) -> list[tuple[str, str]]:
    """Accuracy and margin, first and last, of a run or a stage that learned from preferences."""
    curves = {name: series(metrics, f"preference/{name}") for name in ("accuracy", "margin")}
    said = [f"{name} {points[0][1]:.3g} → {points[-1][1]:.3g}" for name, points in curves.items() if points]
    return [("preferences", ", ".join(said))] if said else []


def _methods(config: Mapping[str, Any]) -> list[str]:
    """The methods of the stages; the method of the run where there are no stages."""
    common = str(config.get("astune.algorithm.method"))
    return [str((stage.get("algorithm") or {}).get("method", common)) for stage in config.get("astune.stages") or []]


def _stages(metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    stages = enumerate(stages_of(metrics, _methods(config)), start=1)
    return [(f"stage {number}", show_stage(stage)) for number, stage in stages]


def _best(metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    figures = figures_so_far(config.get("astune.trainer.keep_best"), config.get("astune.stages"), metrics)
    best = best_so_far(metrics, figures)
    if best is None:
        return []
    path = f"checkpoints/step_{best.step:06d}"
    return [("best", show_best({"figure": figures[-1], "step": best.step, "value": best.value, "path": path}))]


def _words(metrics: Metrics) -> dict[str, str]:
    """The meanings of the figures in the small pictures, by the names that they have there."""
    names = ("success/mean", *small_charts({key for row in metrics for key in row}))
    return {name_metric(key): METRICS[key] for key in names if key in METRICS and len(series(metrics, key)) > 1}


def _small_charts(metrics: Metrics) -> list[Markup]:
    curves = [(key, series(metrics, key)) for key in small_charts({key for row in metrics for key in row})]
    return [Markup(small_svg(name_metric(key), points)) for key, points in curves if len(points) > 1]


@dataclass(frozen=True)
class HeldOutRow:
    """One line of the held-out table. `kind` is None for the line of all tasks."""

    decoding: str
    kind: str | None
    figure: str
    before: MeanOverTasks | None
    after: MeanOverTasks | None

    def show(self, found: MeanOverTasks | None) -> str:
        return show_mean(self.figure, found)


def make_held_out_rows(metrics: Metrics, heads: Mapping[str, Sequence[Head]]) -> list[HeldOutRow]:
    """The figures before and after training per decoding, then per kind of task where the tasks' rows name kinds."""
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
