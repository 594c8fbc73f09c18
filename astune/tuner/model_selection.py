"""`agentscope.tuner.model_selection`: the best of several models."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from astune.api.select_model import select_model as select_by_tasks
from astune.errors import TrainingError
from astune.selection.rows import outcome_lines
from astune.selection.select import Selection
from astune.support.concurrency import begin
from astune.tuner.arguments import DatasetConfig, JudgeOutput, JudgeType, WorkflowType, rows_of
from astune.tuner.checks import check_parameters
from astune.tuner.keys import monitor_keys, question_keys
from astune.types import Episode, Task, WorkflowOutput
from astune.workflow.agentscope import convert_output
from astune.workflow.live_model import LiveModel, usage_of
from astune.workflow.workflow_base import call_user_code

__all__ = ["avg_time_judge", "avg_token_consumption_judge", "select_model"]


async def avg_time_judge(_task: dict[str, Any], response: Any) -> JudgeOutput:
    """Judge by speed: the reward is minus the seconds that the workflow took."""
    seconds = _metrics(response, "execution_time")["execution_time"]
    return JudgeOutput(reward=-seconds, metrics={"avg_time_seconds": seconds})


async def avg_token_consumption_judge(_task: dict[str, Any], response: Any) -> JudgeOutput:
    """Judge by thrift: the reward is minus the tokens of all calls of the model."""
    usage = _metrics(response, "usage")["usage"]
    spent = next((usage[name] for name in ("total_tokens", "output_tokens") if usage.get(name) is not None), None)
    if spent is None:
        raise ValueError("the usage has neither total_tokens nor output_tokens")
    return JudgeOutput(reward=-float(spent), metrics={"token_consumed": float(spent)})


def _metrics(response: Any, name: str) -> Mapping[str, Any]:
    metrics = response.get("metrics") if isinstance(response, Mapping) else None
    if metrics is None or name not in metrics:
        raise ValueError(f"a response for this judge is {{'response': ..., 'metrics': {{{name!r}: ...}}}}")
    found: Mapping[str, Any] = metrics
    return found


async def select_model(
    *,
    workflow_func: WorkflowType,
    judge_func: JudgeType,
    train_dataset: DatasetConfig,
    candidate_models: Sequence[Any],
    max_threads: int = 2,
) -> tuple[Any, dict[str, float]]:
    """Play the tasks with each of the models, by `astune.select_model`; no more than `max_threads` episodes at a time.
    Returns the object whose mean reward is highest, the first of equal ones, and the means of its judge's metrics.
    Attempts that failed are left out, as in 1.x.

    Each model is called in the loop that awaits this; once that is cancelled, as by Ctrl-C, no more calls are made. A
    judge's `response` is {"response": ..., "metrics": ...}, with `execution_time` and, where the API tells it, the
    `usage` of the candidate's calls among the metrics.
    Raises ValueError for what 1.x refuses too, `ConfigError` for what is no chat model, and `TrainingError` where
    nothing could be judged.
    """
    check_parameters(workflow_func, ("task", "model"))
    try:
        check_parameters(judge_func, ("task", "response"))
    except ValueError:
        check_parameters(judge_func, ("_task", "response"))
    if len(candidate_models) < 2:
        raise ValueError(f"candidate_models: expected two or more to choose from, got {len(candidate_models)}")
    loop = asyncio.get_running_loop()
    rows = rows_of(train_dataset)
    count = len(rows) if train_dataset.total_steps is None else min(train_dataset.total_steps, len(rows))
    keys = monitor_keys(None, None, None) | question_keys(train_dataset, rows[0])
    keys |= {
        "astune.rollout.max_concurrent": max_threads,
        "astune.evaluation.decoding": ["sampled"],
        "astune.evaluation.attempts": 1,
    }
    live = [LiveModel(model, loop) for model in candidate_models]
    tasks = [dict(rows[index]) for index in range(count)]
    call = partial(
        select_by_tasks,
        _add_metrics(workflow_func),
        tasks,
        _show_metrics(judge_func),
        models=live,
        stop_early=0.0,
        **keys,
    )
    try:
        found = await begin(call, "select_model")
    except asyncio.CancelledError:  # Ctrl-C too: what the thread still plays asks nobody any more
        for each in live:
            each.stopped.set()
        raise
    if found.picked is None:
        raise TrainingError(f"select_model: {'; '.join(outcome_lines(found.selection))}")
    played = list(found.selection.contest.played)
    return candidate_models[played.index(found.picked)], _average(found.selection, found.picked)


def _add_metrics(function: WorkflowType) -> WorkflowType:
    """The workflow with the metrics of 1.x beside its own: `execution_time` and tokens. It is judged by the judge
    alone."""

    @wraps(function)
    async def play(task: dict[str, Any], model: Any) -> Any:
        began = time.perf_counter()
        returned = await call_user_code(function, task=task, model=model)
        seconds = time.perf_counter() - began
        output = returned if isinstance(returned, WorkflowOutput) else convert_output(returned)
        if output is None:
            return returned
        metrics = {**output.metrics, "execution_time": seconds, **(usage_of(model) or {})}
        return replace(output, reward=None, metrics=metrics)

    return play


def _show_metrics(function: JudgeType) -> Any:
    """The judge, whose response is a dict with the metrics."""
    name = "task" if "task" in inspect.signature(function).parameters else "_task"

    async def judge(task: Task, episode: Episode) -> Any:
        assert episode.output is not None
        metrics = dict[str, Any](episode.output.metrics)
        if "total_tokens" in metrics:
            metrics["usage"] = {name: metrics[name] for name in ("input_tokens", "output_tokens", "total_tokens")}
        response = {"response": episode.output.response, "metrics": metrics}
        return await call_user_code(function, **{name: dict(task.metadata), "response": response})

    return judge


def _average(selection: Selection, name: str) -> dict[str, float]:
    """The means of the judge's metrics over the attempts that were judged, by their names with `_avg`."""
    groups = selection.contest.played[name].groups[selection.evaluation]
    verdicts = [each.verdict for group in groups for each in group.episodes if each.verdict is not None]
    names = dict.fromkeys(metric for verdict in verdicts for metric in verdict.metrics)
    return {
        f"{metric}_avg": sum(verdict.metrics.get(metric, 0.0) for verdict in verdicts) / len(verdicts)
        for metric in names
    }
