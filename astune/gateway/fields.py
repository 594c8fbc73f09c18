"""Reading the fields of a request body, one kind at a time. Null is as good as absent, everywhere.

No option silently does nothing. A field is honoured, cannot change a token (ignored), is a wish that is ignored with
a note in the log (noted), is accepted at the value that asks for nothing (neutral), or is refused with a 400 that names
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from astune.errors import nearest
from astune.gateway.errors import ApiError, invalid, unsupported

Fields = Mapping[str, Any]

REASONING = "How the policy reasons is set by astune.model.chat_template_kwargs."
VERBOSITY = "Say in the prompt how long an answer should be."
_MOST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Known:
    """The fields of one kind of request."""

    honoured: Collection[str]
    ignored: Collection[str]
    """Fields that cannot change a token, such as labels for the provider's own books."""
    neutral: Mapping[str, tuple[Any, ...]]
    """Values that ask for nothing, of fields that are otherwise refused."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """Texts that are ignored, and what is said of that: a sentence."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Advice for a field that is refused: a sentence."""


def read_fields(body: object, known: Known) -> dict[str, Any]:
    """The fields of `body` that are not null.

    Raises:
        ApiError: 400, the body is no object or has a field that is unknown or not supported.
    """
    if not isinstance(body, Mapping):
        raise ApiError(400, "invalid_json", "the body is not a JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    for name, value in fields.items():
        if name in known.noted:
            get(fields, name, str, "a string", "")
        elif name not in known.honoured and name not in known.ignored and value not in known.neutral.get(name, ()):
            raise _not_supported(name, value, known)
    return fields


def notes_on(fields: Fields, known: Known) -> Iterator[str]:
    """The notes on fields that are ignored with one."""
    return (f"{name} is ignored. {known.noted[name]}" for name in fields if name in known.noted)


def _not_supported(name: str, value: object, known: Known) -> ApiError:
    instead = f" {known.instead[name]}" if name in known.instead else ""
    if name in known.neutral:
        return unsupported(name, f"{name}={value!r:.200} is not supported here.{instead}")
    hint = instead or nearest(name, [*known.honoured, *known.noted, *known.neutral])
    return ApiError(400, "unknown_parameter", f"{name!r} is not supported here.{hint}", name)


def get(fields: Fields, name: str, kind: type, expected: str, default: Any) -> Any:
    value = fields.get(name, default)
    if not isinstance(value, kind):
        raise invalid(name, value, expected)
    return value


def flag(fields: Fields, name: str, default: bool = False) -> bool:
    value: bool = get(fields, name, bool, "true or false", default)
    return value


def number(fields: Fields, name: str, accepts: Callable[[float], bool], expected: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    readable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not readable or not accepts(value):
        raise invalid(name, value, expected)
    return float(value)


def integer(fields: Fields, name: str, at_least: int | None = None, at_most: int | None = None) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    expected = "an integer of 64 bits" + ("" if at_least is None else f" of at least {at_least}")
    expected += "" if at_most is None else f", at most {at_most}"
    inside = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_INTEGER
    if not inside or (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
        raise invalid(name, value, expected)
    return int(value)
