"""A search from its configuration to its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from astune.clients.chat_models import ChatModels, Usage
from astune.config.clock import read_clock, with_clock
from astune.config.load import LoadedConfig
from astune.config.prompts import PromptsConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, TaskError, TrainingError, WorkflowError, nearest
from astune.monitor.episodes import EpisodeLog
from astune.monitor.jsonl import LineFile
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir, runs_folder
from astune.plugins import load_plugin
from astune.prompts.attempts import TaskResult, usage_of
from astune.prompts.candidates import Candidates, PromptCandidate, Texts
from astune.prompts.problem import Problem, SearchEnds
from astune.prompts.record import CANDIDATES, REFLECTIONS, RESULT, SearchPlan, SearchRecord
from astune.prompts.reflection import FunctionReflector, ModelReflector, Reflector
from astune.prompts.result import PromptSearch, write_prompts
from astune.rollout.group import run_groups
from astune.rollout.setup import RolloutSetup
from astune.support.concurrency import begin, run_and_leave
from astune.task_reader.held_out import find_held_out_limit, question_number
from astune.task_reader.task_sets import TaskSets
from astune.training.candidates import Candidate
from astune.training.comparison import compare
from astune.training.engine import LoadEngine
from astune.training.model_calls import CallLog, read_calls
from astune.training.rollout_setup import environment_service, sampling_for
from astune.training.standalone import About, Played, drop_unfinished, load_player, play_with, set_up_player
from astune.training.tasks import read_tasks
from astune.types import Episode, Group, Task
from astune.workflow.named_texts import PROMPTS_FILE, SKILL, TOOL, NamedTexts, placeholders

FEWEST_TESTED = 6
"""With fewer tasks no paired test can tell a gain from luck: five of five are p = 0.06."""
FEWEST_SEARCHED = 3
METHODS = {"gepa": "astune.prompts.gepa_method:GepaSearch"}
HELD_OUT = "held_out"
Tested: TypeAlias = Sequence[tuple[Group, Usage]]
"""Groups, and what each of them cost."""


def search_prompts(
    loaded: LoadedConfig, load_engine: LoadEngine, model: Candidate, *, as_model: bool = False
) -> PromptSearch:
    """Search for better texts as `astune.prompts` says, with the weights of `model`, and test what was found.

    Raises ConfigError and TaskError before anything is played for what cannot work, and TrainingError where nothing
    could be judged.
    """
    loaded = _name(loaded)
    config = loaded.config.astune
    reflector = _reflector(config.prompts)
    _check_prices(config.prompts, model)
    with ExitStack() as stack:
        ready = stack.enter_context(environment_service(config))
        tasks = divide(read_tasks(ready), config.prompts.holdout, config.seed)
        _check_budget(config.prompts, len(tasks[0]))
        engine = load_player(ready, model, load_engine, as_model, stack)
        again = config.resume
        run_dir = RunDir.reopen(loaded.config, checkpoint=False) if again else RunDir.open(loaded.config, resume=False)
        stack.enter_context(run_dir)
        record = SearchRecord(run_dir)
        drop_unfinished(run_dir, dict.fromkeys(run_dir.episodes_dir.glob("*.jsonl"), config.prompts.attempts))
        setup, calls = set_up_player(ready, model, engine, run_dir)
        stack.enter_context(closing(calls))
        progress = stack.enter_context(Progress(config.monitor.progress))
        progress.run_started(loaded.config, run_dir, 0)
        search = _Search(ready, record, setup, calls, model, tasks, reflector, progress)
        return run_and_leave(play_with(engine, search.run()))


def divide(sets: TaskSets, share: float | None, seed: int) -> tuple[list[Task], list[Task]]:
    """The tasks of the search and those of the test: a share of the training tasks, with equal questions on one side;
    without a share those that the reader holds out. Raises TaskError where there are too few."""
    if not sets.training:
        raise TaskError("there are no training tasks to search on: set astune.task_reader")
    searched, tested = list(sets.training), list(sets.held_out)
    if share is not None:
        numbers = [question_number(task, seed) for task in sets.training]
        limit = find_held_out_limit(numbers, share)
        searched = [task for task, number in zip(sets.training, numbers, strict=True) if number >= limit]
        tested = [task for task, number in zip(sets.training, numbers, strict=True) if number < limit]
    if len(tested) >= FEWEST_TESTED and len(searched) >= FEWEST_SEARCHED:
        return searched, tested
    leaves = "null takes the held-out tasks of astune.task_reader:" if share is None else f"{share:g} leaves"
    needed = 0 if share is None else max(round(FEWEST_TESTED / share + 0.5), round(FEWEST_SEARCHED / (1 - share) + 0.5))
    raise TaskError(
        f"{len(sets.training)} training tasks: astune.prompts.holdout {leaves} {len(searched)} to search on and "
        f"{len(tested)} to test on; expected {FEWEST_SEARCHED} and {FEWEST_TESTED} or more, as fewer cannot tell a "
        f"gain from luck. Give more tasks{f', {needed} or more' if needed else ''}, or another astune.prompts.holdout"
    )


def _name(loaded: LoadedConfig) -> LoadedConfig:
    """The configuration under the name of the search, at the clock of the one that it goes on with."""
    astune = loaded.config.astune
    if astune.rollout.workers:
        raise ConfigError(
            f"{loaded.where('astune.rollout.workers')}: `astune prompt` plays episodes in its own process; take it out"
        )
    name = f"{astune.experiment_name or 'run'}-prompts"
    astune = astune.model_copy(update={"experiment_name": name})
    loaded = replace(loaded, config=loaded.config.model_copy(update={"astune": astune}))
    if not astune.resume:
        return with_clock(loaded)
    former = RunDir.newest(runs_folder(loaded.config), name, checkpoint=False)
    return with_clock(loaded, read_clock(former.config_path))


def _check_budget(config: PromptsConfig, tasks: int) -> None:
    least = tasks * config.attempts
    if config.max_episodes is not None and config.max_episodes < least:
        raise ConfigError(
            f"astune.prompts.max_episodes: got {config.max_episodes}, and the first texts alone take {least}: "
            f"{tasks} tasks of the search, {config.attempts} attempts each (astune.prompts.attempts)"
        )


def _check_prices(config: PromptsConfig, model: Candidate) -> None:
    """Raise ConfigError where a limit on the cost has no prices to go by."""
    asked = [] if config.reflector else config.reflection.models
    priced = [(f"astune.prompts.reflection.models.{at}", one) for at, one in enumerate(asked)]
    for key, one in [*priced, *([] if model.chat is None else [(model.key, model.chat)])]:
        if config.max_cost is not None and None in (one.prompt_price, one.completion_price):
            raise ConfigError(f"{key}: astune.prompts.max_cost needs its prompt_price and its completion_price")


def _reflector(config: PromptsConfig) -> Reflector:
    if config.reflector is not None:
        return FunctionReflector(load_plugin(config.reflector, kind="reflector"))
    key = "astune.prompts.reflection"
    if not config.reflection.models:
        raise ConfigError(
            f"{key}.models: not set; models write the new texts. Expected a list such as [{{base_url: https://.../v1, "
            "model: ..., api_key_env: ...}], or a function of your own as astune.prompts.reflector"
        )
    return ModelReflector(ChatModels(config.reflection, key=key))


class _Search:
    """A search under way."""

    def __init__(
        self,
        config: AstuneConfig,
        record: SearchRecord,
        setup: RolloutSetup,
        calls: CallLog,
        model: Candidate,
        tasks: tuple[Sequence[Task], Sequence[Task]],
        reflector: Reflector,
        progress: Progress,
    ) -> None:
        self._config = config
        self._reflector = reflector
        self._progress = progress
        self._tasks, self._held_out = tasks
        self._record = record
        ids = [[task.task_id for task in each] for each in tasks]
        mark = f"{model.name} {model.mark}".strip()
        self._about = self._record.begin(SearchPlan(ids[0], ids[1], config.prompts.attempts, mark))
        self._setup, self._calls = setup, calls
        self._sampling = calls.sampling = sampling_for(config, "sampled")
        self._own = model.chat is None
        self._given = dict(setup.texts.given)
        self._log = EpisodeLog(record.run_dir)

    async def run(self) -> PromptSearch:
        candidates = Candidates(self._record.run_dir.path / CANDIDATES, self._about.search)
        with self._log, LineFile(self._record.run_dir.path / REFLECTIONS) as written:
            async with self._setup.open():
                problem = Problem(
                    self._tasks,
                    candidates,
                    self._play,
                    self._reflector,
                    self._config.prompts,
                    self._config.seed,
                    self._record.reflections(),
                    written,
                )
                await self._play_first(problem)
                await self._search(problem)
                tested = await self._test(candidates)
        return self._finish(problem, tested)

    async def _play_first(self, problem: Problem) -> None:
        """Play the first candidate, which tells the texts that the workflow asks for."""
        chosen, texts = self._config.prompts.tune, self._setup.texts
        first = self._about.first
        if first is None:
            self._record.forget("prompt/c0")
        problem.candidates.add(first or {}, (), 0)
        everywhere = range(len(self._tasks))
        (begun,) = await problem.play(first or {}, everywhere[:1])
        if all(attempt.error.startswith(WorkflowError.__name__) for attempt in begun.attempts):
            raise ConfigError(f"the workflow cannot be played: {begun.attempts[0].error}")
        if first is None and not _names(chosen, texts):
            raise ConfigError(_never_asked(chosen, texts))
        for name in _names(chosen, texts):
            _check_filled(name, self._given.get(name, texts.asked[name]), begun)
        await problem.play(first or {}, everywhere)
        results = problem.candidates.first.results.values()
        attempts = [attempt for result in results for attempt in result.attempts]
        if all(attempt.reward is None for attempt in attempts):
            raise TrainingError(f"none of {len(attempts)} episodes could be judged. The first: {attempts[0].error}")
        if first is None:
            names = _names(chosen, texts)
            if len(names) < len(chosen):
                raise ConfigError(_never_asked(chosen, texts))
            first = {name: self._given.get(name, texts.asked[name]) for name in names}
            problem.candidates.rename_first(first)
            self._about = replace(self._about, first=first)
            self._record.save_about(self._about)
        problem.candidates.save()
        self._tell(problem.candidates.first)

    async def _search(self, problem: Problem) -> None:
        method = load_plugin(self._config.prompts.method, kind="method", builtin=METHODS)()
        try:
            await begin(partial(method.search, problem), "prompts")
        except SearchEnds:
            pass
        finally:
            problem.ended = problem.ended or "the method was done"
            problem.candidates.save()
        if problem.failure is not None:
            raise problem.failure

    async def _test(self, candidates: Candidates) -> dict[str, Tested]:
        """Play the held-out tasks with the first candidate and the best; not where that is one."""
        best, tested = candidates.best, {}
        for one in (candidates.first, best) if best is not candidates.first else ():
            tested[one.name] = await self._play(one.texts, self._held_out, f"eval/{one.name}", one.round)
        return tested

    async def _play(self, texts: Texts, tasks: Sequence[Task], phase: str, step: int) -> Tested:
        attempts = self._config.prompts.attempts
        known = self._record.groups(phase, tasks)
        missing = [task for task in tasks if task.task_id not in known]
        setup = self._setup
        if texts:
            setup = replace(setup, texts=NamedTexts({**self._given, **texts}))
        if missing:
            self._progress.phase_started(phase.replace("/", ", "), len(missing) * attempts)
            await run_groups(
                missing,
                attempts,
                setup,
                seed=self._config.seed,
                sampling=self._sampling,
                max_concurrent=self._config.rollout.max_concurrent,
                label=phase,
                on_episode=partial(self._write, phase, step),
            )
            self._log.sync()
            known = self._record.groups(phase, tasks)  # as they will be read after a restart
        calls = read_calls(self._record.run_dir.path)
        groups = [known[task.task_id] for task in tasks]
        made = [[call for one in group.episodes for call in calls.get(one.episode_id, ())] for group in groups]
        return [(group, usage_of(each, own=self._own)) for group, each in zip(groups, made, strict=True)]

    def _write(self, phase: str, step: int, episode: Episode) -> None:
        self._log.write(episode, step=step, phase=phase)
        self._progress.episode_done(episode)

    def _tell(self, one: PromptCandidate) -> None:
        self._progress.note(f"{one.name}: mean reward {one.mean:.3f} at {len(one.results)} tasks of the search")

    def _finish(self, problem: Problem, tested: Mapping[str, Tested]) -> PromptSearch:
        candidates, counts = problem.candidates, problem.counts
        best, folder = candidates.best, self._record.run_dir.path
        played = [_as_played(folder, name, [group for group, _ in each]) for name, each in tested.items()]
        out = self._config.prompts.out
        found = PromptSearch(
            folder=folder,
            prompts=best.texts,
            first=candidates.first.texts,
            best=best.texts,
            candidate=best.name,
            ended=problem.ended or "",
            candidates=len(candidates.all),
            dropped=counts.dropped,
            junk=counts.junk,
            episodes=counts.episodes,
            searching=counts.spent,
            reflecting=counts.reflections,
            compared=compare(*played) if played else (),
            tested={name: sum((spent for _, spent in each), Usage()) for name, each in tested.items()},
        )
        if not found.gained:
            found = replace(found, prompts=found.first)
        for path in (folder / PROMPTS_FILE, *([Path(out)] if out else ())):
            write_prompts(path, found)
        self._record.write(RESULT, found.to_json())
        return found


def _as_played(folder: Path, name: str, groups: Sequence[Group]) -> Played:
    tasks = {HELD_OUT: [group.task.task_id for group in groups]}
    about = About(Candidate(name), tasks, {HELD_OUT: len(groups[0].episodes)})
    return Played(folder, about, {HELD_OUT: groups})


def _names(chosen: Sequence[str], texts: NamedTexts) -> list[str]:
    """The names to tune: those that are chosen, else all that the workflow asks for itself, no tools and skills."""
    own = [name for name in texts.asked if not name.startswith((TOOL, SKILL))]
    return [name for name in chosen if name in texts.asked] if chosen else own


def _check_filled(name: str, text: str, result: TaskResult) -> None:
    """Raise ConfigError where the model saw a placeholder of the text as it stands, which is not the task's own."""
    for held in sorted(placeholders(text)):
        shown = f"{{{held}}}"
        if shown not in result.query and any(shown in attempt.transcript for attempt in result.attempts):
            raise ConfigError(
                f"prompt {name!r} has the placeholder {shown}, and nothing fills it: the model sees it as it stands. "
                f"Fill it in the workflow, as by tuner.prompt({name!r}, ..., {held}=...), or write it without braces"
            )


def _never_asked(chosen: Sequence[str], texts: NamedTexts) -> str:
    missing = [name for name in chosen if name not in texts.asked]
    known = ", ".join(texts.asked) or "nothing"
    if missing:
        return (
            f"astune.prompts.tune: the workflow never asks for {', '.join(map(repr, missing))}."
            f"{nearest(missing[0], texts.asked)} It asks for: {known}"
        )
    return (
        "the workflow never asks for a text that could be tuned: take it from tuner.prompt('system', default='You are "
        "...'), or as its parameter system_prompt" + (f". astune.prompts.tune may name {known}" if texts.asked else "")
    )
