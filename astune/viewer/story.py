"""The story of a run in words and tables, and the episodes that it shows: what `report.html` has before the page of all
episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from astune.algorithm.curriculum import POOLS
from astune.config.schema import Config
from astune.config.section import flatten
from astune.monitor import summarize
from astune.monitor.checkpoint_names import best_so_far, figures_so_far
from astune.monitor.receipt import Metrics, receipt_lines, sum_of_receipts
from astune.monitor.summary import (
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
from astune.monitor.words import FORKS, LEFT_OUT, METRICS
from astune.support.statistics import CONFIDENCE, permutation_test
from astune.viewer.charts import Area, name_metric, small_charts, stack_areas
from astune.viewer.chosen import (
    ExampleEpisode,
    FailureKind,
    Pair,
    at_step,
    failures,
    over_tasks,
    pick_pairs,
    pick_training,
    scores,
)
from astune.viewer.held_out import HeldOutRow, make_held_out_rows
from astune.viewer.run_index import IndexedEpisode, RunIndex

MOST_DEBUG_EPISODES = 20


@dataclass(frozen=True)
class Story:
    """The words and tables of a report. `changed` are the keys that differ from their defaults: key, value, default."""

    verdict: str
    facts: list[tuple[str, str]]
    held_out: list[HeldOutRow]
    receipt: ReceiptView | None
    pools: list[Area]
    words: dict[str, str]
    failures: list[FailureKind]
    pairs: list[Pair]
    training: dict[int, list[ExampleEpisode]]
    debug: list[IndexedEpisode]
    changed: list[tuple[str, Any, Any]]
    config: Mapping[str, Any]

    def pick(self, entries: Iterable[IndexedEpisode]) -> list[IndexedEpisode]:
        """Pick the `entries` that the story names, training episodes with the attempts that they are compared with."""
        shown = [entry for pair in self.pairs for entry in (pair.before, pair.after)]
        shown += [entry for examples in self.training.values() for example in examples for entry in example.group]
        wanted = set(map(id, (*shown, *self.debug)))
        return [entry for entry in entries if id(entry) in wanted]


def tell_run(index: RunIndex, config: Mapping[str, Any]) -> Story:
    """`config` by dotted keys, as `run_config.config_of` reads it."""
    metrics, phases = [row for _, row in index.metrics], index.by_phase()
    decoded = next((phase for phase in ("eval/greedy", "eval/sampled") if phases[phase]), "eval/greedy")
    defaults = dict(flatten(Config().model_dump(mode="json")))
    return Story(
        verdict=verdict_line(metrics, phases, _methods(config)),
        facts=_facts(metrics, config, phases["train"]),
        held_out=make_held_out_rows(metrics, phases),
        receipt=receipt_view(metrics),
        pools=stack_areas(metrics, [f"curriculum/{pool}" for pool in POOLS]),
        words=_words(metrics),
        failures=failures(phases),
        pairs=pick_pairs(phases[decoded]),  # greedy where there is such decoding: no luck in it
        training=pick_training(phases["train"]),
        debug=phases["debug"][:MOST_DEBUG_EPISODES],
        changed=[(key, value, defaults.get(key)) for key, value in config.items() if value != defaults.get(key)],
        config=config,
    )


def verdict_line(metrics: Metrics, phases: Mapping[str, Sequence[IndexedEpisode]], methods: Sequence[str] = ()) -> str:
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
        return " ".join([_outcome(compared, phases), *_falls(metrics, compared, phases, methods)])
    rewards = series(metrics, "reward/mean")
    if phases["debug"]:
        share = over_tasks(phases["debug"])
        mean = "none was judged" if share is None else f"mean score {share.mean:.3g}"
        return f"Debug run: {len(phases['debug'])} episodes, {mean}; nothing was trained."
    if not rewards:
        return _without_rewards(metrics)
    return f"Mean reward in training {rewards[0][1]:.3f} → {rewards[-1][1]:.3f}; no held-out tasks before and after."


def _outcome(compared: Mapping[str, Mapping[str, Any]], phases: Mapping[str, Sequence[IndexedEpisode]]) -> str:
    """One sentence: the ways of decoding in which it is clear that something changed come first."""
    words = {
        decoding: _change(phases[f"eval/{decoding}"], row["first"]["step"], row["last"]["step"])
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
    phases: Mapping[str, Sequence[IndexedEpisode]],
    methods: Sequence[str],
) -> list[str]:
    """Sentences about figures that fell again: from one stage to the next, else from the best evaluation to the
    last."""
    ends = [0, *(stage["steps"][1] for stage in stages_of(metrics, methods) if stage["steps"])]
    said = []
    for decoding, row in compared.items():
        evaluated, points = phases[f"eval/{decoding}"], dict(series(metrics, f"eval/{decoding}/{row['figure']}"))

        def fell(start: int, end: int, evaluated: Sequence[IndexedEpisode] = evaluated) -> bool:
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


def _change(entries: Sequence[IndexedEpisode], first: int, last: int) -> str:
    """Better or worse only where the paired test over tasks finds chance alone in less than 5 % of cases."""
    before, after = (scores(at_step(entries, step)) for step in (first, last))
    differences = [after[task] - before[task] for task in before if task in after]
    if not differences or permutation_test(differences).p >= 1 - CONFIDENCE:
        return NO_CHANGE
    return "Better" if sum(differences) > 0 else "Worse"


def _facts(metrics: Metrics, config: Mapping[str, Any], trained: Sequence[IndexedEpisode]) -> list[tuple[str, str]]:
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
    failed_tools = show_tools(summary["tools"], _first_failures(trained, throughout))
    shares = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in seconds.items() if value > 0)
    failed = f"{summary['failed']:,} failed" if summary["failed"] else "none failed"
    stages = enumerate(stages_of(metrics, _methods(config)), start=1)
    return [
        *ran_with,
        ("steps", str(summary["steps"])),
        *[(f"stage {number}", show_stage(stage)) for number, stage in stages],
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


def _first_failures(trained: Sequence[IndexedEpisode], steps: Mapping[str, int]) -> dict[str, str]:
    """The message of the first failed call of each tool in the training step that `steps` names for it."""
    found: dict[str, str] = {}
    for entry in trained:
        for name, message in entry.failed_tools.items():
            if steps.get(name) == entry.step:
                found.setdefault(name, message)
    return found


def _preferences(metrics: Metrics) -> list[tuple[str, str]]:
    """Accuracy and margin, first and last, of a run or a stage that learned from preferences."""
    curves = {name: series(metrics, f"preference/{name}") for name in ("accuracy", "margin")}
    said = [f"{name} {points[0][1]:.3g} → {points[-1][1]:.3g}" for name, points in curves.items() if points]
    return [("preferences", ", ".join(said))] if said else []


def _methods(config: Mapping[str, Any]) -> list[str]:
    """The methods of the stages; the method of the run where there are no stages."""
    common = str(config.get("astune.algorithm.method"))
    return [str((stage.get("algorithm") or {}).get("method", common)) for stage in config.get("astune.stages") or []]


def _best(metrics: Metrics, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Tell of the best checkpoints: that of the run, and those of models that have a figure of their own."""
    kept_by = {"best": figures_so_far(config.get("astune.trainer.keep_best"), config.get("astune.stages"), metrics)}
    for key, figure in config.items():
        if key.startswith("astune.models.") and key.endswith(".trainer.keep_best"):
            kept_by[f"best {key.split('.')[2]}"] = [figure]
    rows = []
    for name, figures in kept_by.items():
        if (best := best_so_far(metrics, figures)) is not None:
            path = f"checkpoints/step_{best.step:06d}"
            told = {"figure": figures[-1], "step": best.step, "value": best.value, "path": path}
            rows.append((name, show_best(told)))
    return rows


def _words(metrics: Metrics) -> dict[str, str]:
    """The meanings of the figures in the small pictures, by the names that they have there."""
    names = ("success/mean", *small_charts({key for row in metrics for key in row}))
    return {name_metric(key): METRICS[key] for key in names if key in METRICS and len(series(metrics, key)) > 1}


@dataclass(frozen=True)
class NamedCount:
    """A named count, its part of the whole in percent, and what it means."""

    name: str
    count: int
    percent: float
    meaning: str


@dataclass(frozen=True)
class ReceiptView:
    """`lines` name and value; `tokens` begins with those that were trained; `forks` are shares of all rows."""

    lines: list[tuple[str, str]]
    tokens: list[NamedCount]
    forks: list[NamedCount]


def receipt_view(metrics: Metrics) -> ReceiptView | None:
    """None for a run that has not sampled anything."""
    receipt = sum_of_receipts(metrics)
    if not receipt["sampled"]:
        return None
    tokens = {"trained": receipt["trained"], **receipt["dropped"]}
    lines = [line for line in receipt_lines(receipt) if line[0] not in ("tokens", "forks")]
    return ReceiptView(
        lines,
        _count_rows(tokens, receipt["sampled"], {"trained": "They carry loss.", **LEFT_OUT}),
        _count_rows(receipt["forks"], receipt["timelines"], FORKS),
    )


def _count_rows(counts: Mapping[str, int], whole: int, words: Mapping[str, str]) -> list[NamedCount]:
    return [NamedCount(name, count, 100 * count / max(1, whole), words.get(name, "")) for name, count in counts.items()]
