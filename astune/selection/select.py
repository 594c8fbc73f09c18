"""Play the held-out tasks with several models, and pick one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from astune.backbone.playing import playing_engine
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, ModelError, TrainingError
from astune.selection.figures import (
    AgainstBest,
    ModelFigures,
    compare_with_best,
    figure_of,
    measure,
    values_of,
)
from astune.selection.pick import PickRule
from astune.selection.rounds import Outpaced, find_worse, shuffle_tasks, sizes_of_rounds
from astune.support.visible import tell
from astune.training.candidates import Candidate, candidate_of, live_candidate
from astune.training.engine import Engine, LoadEngine
from astune.training.held_out import Evaluation
from astune.training.standalone import Played, play
from astune.workflow.live_model import LiveModel


@dataclass
class Contest:
    """What came of it: who has played, in the order of the candidates; who was left out, and why; who could not be
    played with, and why not."""

    played: dict[str, Played] = field(default_factory=dict)
    left_out: dict[str, Outpaced] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """Models side by side in the evaluation that decides, and the one that `rule` picks: None where nothing tells."""

    evaluation: str
    figure: str
    rule: PickRule
    figures: Sequence[ModelFigures]
    against: Sequence[AgainstBest]
    contest: Contest
    picked: ModelFigures | None


def candidates_of(models: Sequence[str | LiveModel], config: AstuneConfig, option: str) -> list[Candidate]:
    """Find what `option` names (see `candidate_of`). Raises ConfigError for two of one name; objects get others."""
    candidates: list[Candidate] = []
    for model in models:
        taken = [candidate.name for candidate in candidates]
        candidates.append(
            candidate_of(model, config, option) if isinstance(model, str) else live_candidate(model, taken)
        )
    names = [candidate.name for candidate in candidates]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{option}: {twice[0]!r} is named twice; expected models of different names")
    return candidates


def list_unpriced(candidates: Sequence[Candidate]) -> list[str]:
    """List the names of those whose answers have no price that is known."""
    prices = [(each.name, each.chat and (each.chat.prompt_price, each.chat.completion_price)) for each in candidates]
    return [name for name, known in prices if known is None or None in known]


def engine_for(
    loaded: LoadedConfig, candidates: Sequence[Candidate], backbone: str | None = None, engine: str | None = None
) -> tuple[LoadEngine, bool]:
    """The engine as `playing_engine` finds it, unless chat APIs alone play, which need none."""
    if candidates and not any(each.needs_engine for each in candidates):
        return _no_engine, False
    return playing_engine(loaded, backbone, engine)


def play_models(
    loaded: LoadedConfig,
    ready: AstuneConfig,
    evaluations: Sequence[Evaluation],
    candidates: Sequence[Candidate],
    engine: tuple[LoadEngine, bool],
    out: Path | None,
    rule: PickRule | None = None,
    stop_early: float = 0.0,
) -> Contest:
    """Play the evaluations with one model after the other. What was played before is not played again. `engine` is as
    `engine_for` gives it; `out` is the folder of the first, those of the others are beside it. Where a `rule` is to
    choose one, a model that cannot be played with is noted, and the others go on; `stop_early` is the chance that the
    best may be left out before the end (0: all play all tasks)."""
    contest = Contest()
    tasks = len(evaluations[0].tasks)
    sizes = sizes_of_rounds(tasks) if stop_early else [tasks]
    for size in sizes:
        part = None if size == tasks else _part(evaluations, size, ready.seed)
        for number, candidate in enumerate(candidates, start=1):
            if candidate.name in contest.left_out or candidate.name in contest.unreached:
                continue
            to, beside = _folder_of(out, number), next(iter(contest.played.values()), None)
            try:
                contest.played[candidate.name] = play(
                    loaded.config,
                    ready,
                    candidate,
                    evaluations,
                    engine[0],
                    to,
                    as_model=engine[1],
                    beside=beside,
                    part=part,
                )
            except (ModelError, TrainingError) as error:
                if rule is None:
                    raise
                contest.unreached[candidate.name] = str(error)
                tell(f"{candidate.name} cannot be played with, the others go on: {error}")
        if rule is not None:
            _note_unreached(contest, evaluations[0].name)
        if rule is not None and part is not None:
            _leave_out(contest, evaluations[0].name, len(candidates), len(sizes) - 1, stop_early, rule.within)
    return contest


def _part(evaluations: Sequence[Evaluation], size: int, seed: int) -> dict[str, list[str]]:
    """The tasks of a round, the same part of each evaluation."""
    found = {}
    for each in evaluations:
        ids = [task.task_id for task in each.tasks]
        found[each.name] = shuffle_tasks(ids, seed)[: -(-size * len(ids) // len(evaluations[0].tasks))]
    return found


def _note_unreached(contest: Contest, evaluation: str) -> None:
    """Note the models of which no attempt got an answer, with their first error."""
    for name, played in contest.played.items():
        errors = [episode.error for group in played.groups[evaluation] for episode in group.episodes]
        if errors and errors[0] is not None and all(error and error.stage == "policy" for error in errors):
            contest.unreached[name] = errors[0].message


def _leave_out(contest: Contest, evaluation: str, models: int, tests: int, error: float, within: float) -> None:
    there = {
        name: played.groups[evaluation]
        for name, played in contest.played.items()
        if name not in contest.left_out and name not in contest.unreached
    }
    figure = figure_of(list(there.values()))
    values = {name: values_of(groups, figure) for name, groups in there.items()}
    for worse in find_worse(values, models, tests, error, within):
        contest.left_out[worse.name] = worse
        tell(f"{worse.name} is left out after {worse.tasks} tasks: worse than {worse.leader} (p {worse.p:.2g})")


def select(contest: Contest, rule: PickRule) -> Selection:
    """Pick a model of those that played."""
    first = next(iter(contest.played.values()), None)
    if first is None:
        raise TrainingError(f"no model could be played with: {'; '.join(contest.unreached.values())}")
    evaluation = next(iter(first.groups))
    figure = figure_of([played.groups[evaluation] for played in contest.played.values()])
    figures = [
        measure(played, evaluation, figure, reached=name not in contest.unreached)
        for name, played in contest.played.items()
    ]
    reached = [one for one in figures if one.name not in contest.unreached]
    there = [one for one in reached if one.name not in contest.left_out]
    nothing = figure == "success" and not any(value for one in reached for value in one.values.values())
    picked = None if nothing else rule.pick(there)
    return Selection(evaluation, figure, rule, figures, compare_with_best(reached, there), contest, picked)


def _no_engine(config: AstuneConfig) -> Engine:
    raise AssertionError("only chat APIs play")


def _folder_of(out: Path | None, number: int) -> Path | None:
    if out is None or number == 1:
        return out
    return out.with_name(f"{out.name}-second" if number == 2 else f"{out.name}-{number}")
