"""What is checked of the world that an agent leaves."""

from __future__ import annotations

from astune.worlds.apps.state import World, changes
from astune.worlds.apps.task import AppsTask

NOTHING_ELSE = "nothing else was changed"
ANSWER = "the answer is right"


def score_checks(task: AppsTask, world: World) -> dict[str, bool]:
    """One check for each change that is expected, one that there is no other, and one of the answer if one is due.

    Records are compared, not the way there: what is changed and changed back was not changed.
    """
    wanted, found = changes(task.start, task.expected), changes(task.start, world)
    checks = {change: found[change] >= times for change, times in wanted.items()}
    checks[NOTHING_ELSE] = not found - wanted
    if task.expected.answer is not None:
        checks[ANSWER] = world.answer is not None and _plain(world.answer) == _plain(task.expected.answer)
    return checks


def _plain(answer: str) -> str:
    """Without what makes no difference: capitals, blanks around it and a full stop."""
    return answer.strip().removesuffix(".").casefold()
