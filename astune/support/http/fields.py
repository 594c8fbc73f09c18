"""The fields of a JSON object, read by their kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from astune.sampling import MOST_INTEGER
from astune.support.http.service import HttpError, invalid

Kind = TypeVar("Kind")


class Fields(dict[str, Any]):
    """The fields of a body. Null is as good as absent. Each reader raises HttpError (400) that names the field where a
    value is of another kind, or is missing and has no default."""

    wrong: Callable[[str, object, str], HttpError] = staticmethod(invalid)

    def pick(self, *names: str) -> tuple[str, ...]:
        """Return those of the names that the body has."""
        return tuple(name for name in names if self.get(name) is not None)

    def take(self, name: str, kind: type[Kind], expected: str, default: Kind | None = None) -> Kind:
        value = self.get(name)
        if value is None:
            value = default
        if not isinstance(value, kind):
            raise self.wrong(name, value, expected)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return self.take(name, bool, "true or false", default)

    def number(
        self, name: str, expected: str = "a finite number", accepts: Callable[[float], bool] = lambda value: True
    ) -> float:
        value = self.get(name)
        readable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if not readable or not accepts(cast(float, value)):
            raise self.wrong(name, value, expected)
        return float(cast(float, value))

    def whole(self, name: str, least: int = 0, most: int = MOST_INTEGER, expected: str = "") -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, value, expected or f"an integer from {least} to {most}")
        return value
