"""`astune.tune`: what `astune run` does, as a function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from astune.api.augment import list_made_tasks, with_made_tasks
from astune.api.run import OUTCOME, Run
from astune.api.settings import configure
from astune.backbone.base import BACKBONES, Backbone, check_keys, covers, refuse_problems
from astune.config.load import LoadedConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.errors import AstuneError, PluginError
from astune.monitor.run_dir import RunDir
from astune.plugins import load_plugin
from astune.support.chinese import localize
from astune.support.run_log import file_logger
from astune.support.visible import mute, tell
from astune.task_judge import BUILTIN_JUDGES
from astune.task_reader import TaskReaderJsonl
from astune.task_reader.task_reader_base import SPLITS
from astune.types import RunReport
from astune.viewer import write_report
from astune.workflow.workflow_base import as_workflow

log = file_logger(__name__)


def tune(
    workflow: object = None,
    *,
    tasks: object = None,
    judge: object = None,
    model: object = None,
    validation_tasks: object = None,
    conf: str | PathLike[str] | None = None,
    **keys: Any,
) -> Run:
    """Train the model behind an agent, and return what came of it. Blocks until the run has ended, in a notebook too.

        run = astune.tune(solve, tasks="train.jsonl", judge=exact, model="Qwen/Qwen3-0.6B", trainer={"total_steps": 50})
        run.held_out["greedy"]["last"]["value"]

    `workflow` is a `Workflow` class, a function or a name as "my_agent.py:solve". `tasks` are a list of dicts, a path,
    a `datasets.Dataset`, or a task reader; `validation_tasks` likewise, or the part of them to hold out, as 0.2.
    `judge` is a function, a class, a judge that ships by its name, or a list of {judge, weight}. `keys` are those of
    the configuration, nested or dotted, and `conf` a file to begin from.

    Ctrl-C ends the run and returns what was done; `Run.outcome` says how it ended. Raises what the command line would
    show before anything begins, `ConfigError`, `PluginError` and `TaskError`, and errors that nobody expects.
    """
    with configure(workflow, tasks, judge, model, validation_tasks=validation_tasks, conf=conf, keys=keys) as loaded:
        report = run_loaded(loaded, "the same call with resume=True", "call again without resume")
    return Run(report.run_dir, report.status)


def run_loaded(loaded: LoadedConfig, again: str, anew: str) -> RunReport:
    """Check, run and report what a configuration says. `again` and `anew` tell how to go on with a run that stopped,
    and with one that never began. Raises the error that ended it."""
    started_in = Path.cwd()
    _check_before_loading(loaded)
    try:
        chosen: Backbone = load_plugin(loaded.config.astune.backbone, kind="backbone", builtin=BACKBONES)()
    except PluginError as error:
        raise PluginError(f"{loaded.where('astune.backbone')}: {error}") from error
    ignored = check_keys(chosen, loaded)
    if ignored:
        unused = f"not used by {chosen.name}: {', '.join(ignored)}"
        tell(localize(unused))
        log.info("%s", unused)
    refuse_problems(chosen, loaded)
    loaded = with_made_tasks(loaded)
    result = chosen.run(loaded)
    list_made_tasks(loaded, result.run_dir)
    can_resume = covers(chosen.honours, "astune.resume") and not covers(chosen.ignored_sections, "astune.resume")
    log.info(OUTCOME, result.status, result.steps)
    _tell(result, started_in, again if can_resume else "", anew)
    if result.error is not None:
        raise result.error
    return result


def check_input(config: AstuneConfig) -> None:
    """Raises what the run would raise later: for a workflow or a judge that does not load, a file of tasks that is not
    there, a first task that cannot be read."""
    protocol = config.rollout.agentscope_learn_protocol
    if not rules_of(config.algorithm).plays or protocol is None:
        return
    as_workflow(load_plugin(protocol, kind="workflow"))
    for judge in config.task_judge.judges:
        load_plugin(judge.judge, kind="judge", builtin=BUILTIN_JUDGES)
    if config.task_reader.type != "jsonl" or config.backbone == "debug":  # which may play recorded tasks instead
        return
    for split in SPLITS:
        tasks = TaskReaderJsonl(config.task_reader).read(split)
        if config.task_reader.on_bad_record == "error":
            next(iter(tasks), None)


def _check_before_loading(loaded: LoadedConfig) -> None:
    """Look first at what takes no time: a backbone's libraries take seconds to load."""
    config = loaded.config.astune
    if config.backbone not in BACKBONES:
        return
    for number, stage in enumerate(loaded.stages, start=1):
        try:
            check_input(stage.config.astune)
        except AstuneError as error:
            raise type(error)(f"stage {number}: {error}") from error
    if not loaded.stages:
        check_input(config)
    tell(localize(f"loading the {config.backbone} backbone and the model {config.model.path} ..."))
    sys.stdout.flush()


def _tell(result: RunReport, started_in: Path, again: str, anew: str) -> None:
    """Writes the report of a run that left a folder, and says where things are, if anybody still listens."""
    lines = list(_places(result.run_dir, started_in)) if result.run_dir.is_dir() else []
    try:
        for line in lines:
            tell(localize(line))
        sys.stdout.flush()
        if result.status == "learned_nothing":
            why = f"nothing was learned: {result.summary['nothing_learned']}"
            log.warning("%s", why)
            tell(localize(why), file=sys.stderr)
        if result.status == "interrupted":
            tell(localize(f"interrupted{_hint(result, again, anew) if again else ''}"), file=sys.stderr)
        checkpoint = RunDir(result.run_dir).latest_checkpoint()
        if result.status == "failed" and again and checkpoint is not None:
            tell(localize(f"failed; the last checkpoint is {checkpoint.name}; to go on:\n  {again}"), file=sys.stderr)
    except OSError:  # the terminal was closed
        mute()


def _places(run_dir: Path, started_in: Path) -> Iterator[str]:
    here = run_dir.relative_to(started_in) if run_dir.is_relative_to(started_in) else run_dir
    yield f"run     {here}"
    try:
        yield f"report  {here / write_report(run_dir).name}"
    except AstuneError as error:
        yield f"report  not written: {error}. Then: astune report {here}"
    yield f"view    astune view {here} --open"


def _hint(result: RunReport, again: str, anew: str) -> str:
    if result.steps == 0:
        return f" before the first step was done; {anew}"
    return f" after step {result.steps}; to go on:\n  {again}"
