"""JSON as RFC 8259 has it. Python's reader takes more: NaN, infinities, and of a key given twice the last value."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def read_json(text: str, *, line_breaks: bool = False) -> Any:
    """The value that `text` is the JSON of. `line_breaks` lets line breaks and tabs within strings pass.

    >>> read_json('{"score": NaN}')
    Traceback (most recent call last):
    ValueError: NaN is no number

    Raises ValueError for anything else; a text nested too deeply raises RecursionError.
    """
    return json.loads(
        text, strict=not line_breaks, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.100} is given twice")
        found[key] = value
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text:.50} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _no_number(text)
    return number
