"""Sequences beside each other."""

from __future__ import annotations

from collections.abc import Sequence


def common_start(left: Sequence[object], right: Sequence[object]) -> int:
    """How many entries at the start are equal.

    >>> common_start([1, 2, 3], [1, 2, 4])
    2
    """
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (one, other) in pairs if one is not other and one != other), min(len(left), len(right)))
