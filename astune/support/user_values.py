"""Values and exceptions that come out of users' code, checked where they come in: numbers, texts, and exceptions that
would end more than an episode.

>>> figure(3), figure("3"), figure(10**400)
(3.0, None, None)
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import SupportsFloat

from astune.errors import CtrlC, RolloutError

LARGEST = 1e30
"""A larger number is no reward and no figure: sums and squares of many would not be finite, in float32 neither."""
MOST_SHOWN = 100


def figure(value: object) -> float | None:
    """`value` as a float; None if it is no number, not finite or beyond `LARGEST`. Numbers of numpy and torch, and
    truth values, are numbers; texts are none."""
    if not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except Exception:
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def figures(metrics: object) -> dict[str, float]:
    """Figures by name as plain numbers, none where there are none. Raises ValueError that says which is no figure."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics is {show_value(metrics)}; expected a mapping from names to numbers")
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise ValueError(f"metrics has the key {show_value(name)}; expected a text")
        if (number := figure(value)) is None:
            raise ValueError(no_figure(name, value))
        found[name] = number
    return found


def no_figure(name: str, value: object) -> str:
    """
    >>> no_figure("reward", 1e308)
    'reward must be a finite number, found 1e+308 (float), and none beyond 1e+30'
    """
    return f"{name} must be a finite number, found {show_value(value)}, and none beyond {LARGEST:g}"


def text_of(value: object) -> str:
    """`str(value)`, whatever the class makes of it."""
    return _write(value, str)


def show_value(value: object) -> str:
    """The value and its type, for messages.

    >>> show_value("abc")
    "'abc' (str)"
    """
    return f"{_write(value, repr)[:MOST_SHOWN]} ({type(value).__name__})"


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, or why there is none."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as fault:  # an exception's own attributes may be anything
        return f"(no traceback: showing it raised {type(fault).__name__})\n"


def _write(value: object, form: Callable[[object], str]) -> str:
    try:
        return form(value)
    except CtrlC:
        raise
    except BaseException as error:
        return f"<{type(value).__name__}, of which {type(error).__name__} was raised instead of a text>"


@contextmanager
def contain(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """Around somebody else's code: what is no `Exception`, as `SystemExit` or `KeyboardInterrupt`, comes as
    `RolloutError`, as a task would hand those two to the event loop, and end the run. Cancellation, a real Ctrl-C
    and `passing` pass: around an await that is `GeneratorExit`, by which Python closes a coroutine."""
    let_through: tuple[type[BaseException], ...] = (Exception, asyncio.CancelledError, CtrlC, *passing)
    try:
        yield
    except let_through:
        raise
    except SystemExit as error:
        raise RolloutError(f"{what} called sys.exit({_write(error.code, repr)})") from error
    except BaseException as error:
        raise RolloutError(f"{what} raised {type(error).__name__}: {text_of(error)}") from error
