"""Checks of the user's functions, as `agentscope.tuner` has them.

>>> async def solve(task, model, tools): ...
>>> check_workflow_function(solve)
Traceback (most recent call last):
ValueError: solve: takes 'tools'; expected task, model, and of auxiliary_models, logger what it needs
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

OPTIONAL = ("auxiliary_models", "logger")


def check_workflow_function(func: Callable[..., Any]) -> None:
    """Raises ValueError for a function whose parameters are not those of a workflow."""
    check_parameters(func, ("task", "model"), OPTIONAL)


def check_judge_function(func: Callable[..., Any]) -> None:
    """Raises ValueError for a function whose parameters are not those of a judge."""
    check_parameters(func, ("task", "response"), OPTIONAL)


def check_parameters(func: Callable[..., Any], needed: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Raises ValueError where `func` lacks one of the `needed` parameters, or has one that nobody gives it."""
    beside = f", and of {', '.join(allowed)} what it needs" if allowed else ", and nothing else"
    expected = f"expected {', '.join(needed)}{beside}"
    name = getattr(func, "__qualname__", repr(func))
    parameters = inspect.signature(func).parameters
    for parameter in parameters.values():
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else "*" * (parameter.kind is parameter.VAR_POSITIONAL)
        if star or parameter.name not in (*needed, *allowed):
            raise ValueError(f"{name}: takes '{star}{parameter.name}'; {expected}")
    for each in needed:
        if each not in parameters:
            raise ValueError(f"{name}: lacks {each!r}; {expected}")
