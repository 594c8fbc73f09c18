"""Ends that nothing catches, brought about at a chosen call."""

from __future__ import annotations

from typing import Any

import pytest


class Killed(BaseException):
    """Ends a run at once, as nothing catches it."""


def raise_at(
    patch: pytest.MonkeyPatch, call: int, owner: object, name: str, error: BaseException | None = None
) -> None:
    """Raise in the place of that call of `owner.name`, counted from 1; Killed unless it is told what."""
    original, made = getattr(owner, name), 0

    def raises(*args: Any) -> Any:
        nonlocal made
        made += 1
        if made == call:
            raise error or Killed
        return original(*args)

    patch.setattr(owner, name, raises)
