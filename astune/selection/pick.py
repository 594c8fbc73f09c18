"""The rule that picks a model, by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from astune.errors import ConfigError
from astune.selection.figures import ModelFigures, find_best

RULE = re.compile(r"(cheapest|fastest) within (\d+(?:\.\d+)?) points?")
COSTS: dict[str, Callable[[ModelFigures], float | None]] = {
    "cheapest": lambda one: one.cost_per_solved,
    "fastest": lambda one: None if one.episode_seconds is None else one.episode_seconds[0],
}


@dataclass(frozen=True)
class PickRule:
    """`by` is "best", "cheapest" (for a solved task) or "fastest" (by the median of episodes); of the last two only
    models count that are not worse than the best by more than `within`, a share of tasks."""

    by: str
    within: float = 0.0

    def pick(self, figures: Sequence[ModelFigures]) -> ModelFigures | None:
        """The one that the rule wants; None where nothing tells."""
        best = find_best(figures)
        if best is None or best.solved is None:
            return None
        if self.by == "best":
            return best
        least = best.solved.mean - self.within - 1e-9
        costs = [
            (cost, number)
            for number, one in enumerate(figures)
            if one.solved is not None and one.solved.mean >= least and (cost := COSTS[self.by](one)) is not None
        ]
        return figures[min(costs)[1]] if costs else None


def read_rule(text: str, unpriced: Collection[str]) -> PickRule:
    """Read "best", "cheapest within 3 points" or "fastest within 3 points". Raises ConfigError for another one, and
    where the cheapest is asked for and `unpriced` models have no price.

    >>> read_rule("cheapest within 3 points", ())
    PickRule(by='cheapest', within=0.03)
    """
    found = RULE.fullmatch(text.strip())
    if text.strip() != "best" and found is None:
        raise ConfigError(
            f"--pick {text!r}: expected 'best', 'cheapest within D points' or 'fastest within D points', as "
            "'cheapest within 3 points'"
        )
    if found is None:
        return PickRule("best")
    if found[1] == "cheapest" and unpriced:
        raise ConfigError(
            f"--pick {text!r}: there is no price for {', '.join(unpriced)}; set prompt_price and completion_price at "
            "astune.rollout.auxiliary_models.<name>, or pick by 'fastest within D points'"
        )
    return PickRule(found[1], float(found[2]) / 100)
