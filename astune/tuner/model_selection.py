"""`agentscope.tuner.model_selection`: the best of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astune.errors import ConfigError
from astune.tuner.arguments import DatasetConfig, JudgeOutput, JudgeType, WorkflowType
from astune.tuner.checks import check_parameters

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
    """Check the arguments. Raises ValueError for what 1.x refuses too, and `ConfigError`: the contest itself is not
    there yet."""
    check_parameters(workflow_func, ("task", "model"))
    try:
        check_parameters(judge_func, ("task", "response"))
    except ValueError:
        check_parameters(judge_func, ("_task", "response"))
    if len(candidate_models) < 2:
        raise ValueError(f"candidate_models: expected two or more to choose from, got {len(candidate_models)}")
    raise ConfigError(
        "select_model: it cannot play with AgentScope's model objects yet. Today: astune.select_model(workflow, tasks, "
        'judge, models=["ADDRESS/v1#NAME@KEY_VARIABLE", ...]) picks one of them by the same tasks'
    )
