"""`astune.evaluate`: what `astune eval` does, as a function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from astune.api.eval_tables import ComparedCheckpoints, Evaluated, as_json, choose_figures, evaluation_tables
from astune.api.run import Run
from astune.api.settings import configure
from astune.api.tune import check_input
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.config.tasks import JsonlFile
from astune.errors import ConfigError
from astune.selection.select import candidates_of, engine_for, play_models
from astune.support.concurrency import run_and_leave
from astune.support.statistics import MeanOverTasks
from astune.support.terminal import Console, ShowsItself
from astune.training.comparison import compare, comparing_judges, wins_by_judge, wins_by_reward
from astune.training.held_out import Evaluation, evaluations_of
from astune.training.rollout_setup import environment_service
from astune.training.standalone import Played
from astune.training.tasks import read_tasks


@dataclass(frozen=True)
class EvaluatedModels(ShowsItself):
    """Models on the same tasks: the figures of each, and each later one against the first. A notebook shows tables."""

    models: Sequence[Evaluated]
    compared: Sequence[ComparedCheckpoints]

    def __getitem__(self, name: str) -> dict[str, dict[str, MeanOverTasks]]:
        """The figures of a model: by evaluation, as "greedy", and by figure, as "success"."""
        return next(one.all for one in self.models if one.name == name)

    @property
    def folders(self) -> list[Path]:
        """The folders with all episodes, for `astune view` and `astune eval --compare`."""
        return [one.played.folder for one in self.models]

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return as_json(self.models, self.compared)

    def print(self, console: Console) -> None:
        for table in evaluation_tables(self.models, self.compared):
            console.print(table)


@dataclass(frozen=True)
class Playing:
    """How held-out tasks are played: the first `limit` of each set, into the folder `out`, by the engine that
    `backbone` or `engine` names. Where tasks were `given`, they are played in the place of the held-out ones."""

    limit: int | None = None
    out: Path | None = None
    backbone: str | None = None
    engine: str | None = None
    given: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit: expected a number of tasks from 1 on, got {self.limit}")


def evaluate(
    workflow: object = None,
    tasks: object = None,
    judge: object = None,
    *,
    models: Sequence[object] = ("none",),
    conf: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    **keys: Any,
) -> EvaluatedModels:
    """Play tasks with each of `models`, and compare them with the first on the same tasks, by paired tests.

        astune.evaluate(solve, "test.jsonl", exact, models=["Qwen/Qwen3-0.6B", run])["base"]["greedy"]["success"].mean

    A model is a folder, a hub id, a checkpoint as "runs/p/n@best", a `Run`, an API as "http://host/v1#name", or "none":
    that of the configuration. The other arguments are those of `astune.tune`; without `tasks` the held-out tasks of
    `conf` are played. What was played is kept, and an equal call does not play it again.
    """
    with configure(workflow, tasks, judge, conf=conf, keys=keys) as loaded:
        names = [name_model(model) for model in models]
        playing = Playing(out=None if out is None else Path(out), given=tasks is not None)
        return evaluate_loaded(loaded, names, "models", playing)


def evaluate_loaded(
    loaded: LoadedConfig,
    models: Sequence[str],
    option: str,
    playing: Playing,
    figures: Sequence[str] = (),
    *,
    judge_pairs: bool = False,
) -> EvaluatedModels:
    """Evaluate the models that `option` names, as a configuration says. With `judge_pairs` its judge compares."""
    if not models:
        raise ConfigError(f"{option}: expected one, or more to compare with the first, got an empty list")
    candidates = candidates_of(models, loaded.config.astune, option)
    with open_evaluation(loaded, playing) as (ready, evaluations):
        if judge_pairs:
            judge_of = comparing_judges(ready)
            for task in (task for each in evaluations for task in each.tasks):
                judge_of(task)
        engine = engine_for(loaded, candidates, playing.backbone, playing.engine)
        contest = play_models(loaded, ready, evaluations, candidates, engine, playing.out)
        return compare_played(list(contest.played.values()), figures, ready if judge_pairs else None)


def compare_played(
    played: Sequence[Played], figures: Sequence[str] = (), judges: AstuneConfig | None = None
) -> EvaluatedModels:
    """Compare each with the first; by the judge of `judges` too, if that is given."""
    evaluated = choose_figures(played, figures)
    first, compared = played[0], []
    for other in evaluated[1:]:
        rows = compare(first, other.played)
        if figures:
            rows = [row for figure in figures for row in rows if row.figure == figure]
        wins = wins_by_reward(first, other.played)
        if judges is not None:
            wins += run_and_leave(wins_by_judge(first, other.played, judges))
        compared.append(ComparedCheckpoints(evaluated[0].name, other.name, rows, wins))
    return EvaluatedModels(evaluated, compared)


@contextmanager
def open_evaluation(loaded: LoadedConfig, playing: Playing) -> Iterator[tuple[AstuneConfig, list[Evaluation]]]:
    """Check the input, and yield the configuration with what it asks to be started, and its evaluations."""
    given, limit = playing.given, playing.limit
    config = _without_held_out(loaded.config.astune) if given else loaded.config.astune
    check_input(config)
    with environment_service(config) as ready:
        sets = read_tasks(ready)
        evaluations = evaluations_of(ready.evaluation, replace(sets, held_out=sets.training) if given else sets)
        if not evaluations:
            where = f"{loaded.source}: " if loaded.source else ""
            raise ConfigError(f"{where}there are no held-out tasks; set astune.task_reader.jsonl.validation.file_path")
        cut = [each if limit is None else each._replace(tasks=list(each.tasks[:limit])) for each in evaluations]
        yield ready, cut


def _without_held_out(config: AstuneConfig) -> AstuneConfig:
    """The configuration with nothing held out of its training tasks, or beside them."""
    reader, evaluation = config.task_reader, config.evaluation.model_copy(update={"sets": {}})
    changed: dict[str, object] = {"validation_fraction": None, "max_training_tasks": None}
    changed["jsonl"] = reader.jsonl.model_copy(update={"validation": JsonlFile()})
    changed["huggingface"] = reader.huggingface.model_copy(update={"validation_split": None})
    return config.model_copy(update={"task_reader": reader.model_copy(update=changed), "evaluation": evaluation})


def name_model(model: object) -> str:
    """The text that stands for a model. Raises ConfigError for what is none."""
    if isinstance(model, Run):
        return str(model.model)
    if isinstance(model, str | PathLike):
        return str(model)
    raise ConfigError(f"models: got {model!r:.80}; expected a folder, a hub id, a Run, an API, or 'none'")
