"""Labels that people gave to answers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from astune.errors import TaskError


def check_one_scale(labels: Sequence[tuple[str, object]]) -> None:
    """Labels with their places. Raises TaskError where true or false stands beside numbers other than 0 and 1: is true
    the best of such a scale, or its 1?"""
    truths = [(place, label) for place, label in labels if isinstance(label, bool)]
    numbers = [(place, label) for place, label in labels if isinstance(label, int | float) and label not in (0, 1)]
    if truths and numbers:
        (there, truth), (here, number) = truths[0], numbers[0]
        raise TaskError(
            f"{here}: the label {number:g} is on a scale, but {there} has {json.dumps(truth)}; expected numbers in "
            "all lines of the file, or true and false in all"
        )
