"""Two evaluations on the same tasks: is the second better than the first, or lucky?"""

from __future__ import annotations

from dataclasses import dataclass

from astune.rollout.evaluation_metrics import is_share, values_by_task
from astune.support.statistics import MeanOverTasks, PairedTest, estimate, paired_test
from astune.training.standalone import Played


@dataclass(frozen=True)
class Compared:
    """One figure of an evaluation in both, over the tasks that have it in both: their means, the mean of the
    differences (second less first) with its interval, and the test that it is 0. `left_out` are tasks that have the
    figure in one only."""

    evaluation: str
    figure: str
    first: MeanOverTasks
    second: MeanOverTasks
    difference: MeanOverTasks
    test: PairedTest
    left_out: int


def compare(first: Played, second: Played) -> list[Compared]:
    """Every figure that both have for a task in common."""
    found = []
    for evaluation in [name for name in first.groups if name in second.groups]:
        one, other = (values_by_task(played.groups[evaluation]) for played in (first, second))
        for figure in [figure for figure in one if figure in other]:
            a, b = one[figure], other[figure]
            tasks = [task for task in a if task in b]
            if tasks:
                pairs = [(a[task], b[task]) for task in tasks]
                differences = [after - before for before, after in pairs]
                before, after = (estimate(list(each), share=is_share(figure)) for each in zip(*pairs, strict=True))
                test = paired_test(differences)
                left_out = len(a.keys() ^ b.keys())
                found.append(Compared(evaluation, figure, before, after, estimate(differences), test, left_out))
    return found
