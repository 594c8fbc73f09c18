"""What an attack found."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """A row of the final table. `passed` is None for what could not be run."""

    row: str
    passed: bool | None
    told: str
