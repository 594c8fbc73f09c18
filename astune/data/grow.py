"""The loop that both commands share: sources propose, proposals are screened, checked and admitted, round by round.

The source with the fewest kept tasks is asked next, so that no seed or document makes them all. A round is small, and
what it kept is saved; a run that was cut off and is started again finds its replies in the cache and ends the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from math import ceil
from typing import Protocol, TypeVar

from astune.clients.asking import Inquiry
from astune.clients.usage import BudgetSpent
from astune.data.made import Dropped, Harvest, Made
from astune.data.screen import TaskScreen
from astune.errors import PolicyError

PER_CALL = 4
"""Tasks that a question asks for."""
SOURCES_OF_A_ROUND = 8
BARREN = 3
"""Rounds in a row without a kept task after which it ends."""

R = TypeVar("R")


class Parent(Protocol):
    """A seed, or a part of a document, that tasks are made from."""

    @property
    def name(self) -> str:
        """Its name, by which tasks are spread."""

    @property
    def text(self) -> str:
        """The text that the tasks are to be like in language."""

    def ask(self, visit: int) -> tuple[str, list[dict[str, str]]]:
        """The kind of tasks of a visit, and the question to the model."""

    async def propose(self, visit: int) -> list[Made]:
        """Proposals, others at each visit; none where no reply could be used."""

    async def prove(self, made: Made) -> Made | Dropped:
        """The task with what proves its answer, or why it is dropped."""


def most_visits(sources: Sequence[Parent], target: int) -> int:
    """The most questions about a source: thrice what it takes where all is kept, and twice more."""
    return 2 + 3 * ceil(target / (PER_CALL * len(sources)))


async def grow(sources: Sequence[Parent], screen: TaskScreen, asking: Inquiry, harvest: Harvest) -> None:
    """Make tasks until there are as many as wanted, nothing more comes, or the budget or the models end it. The harvest
    is saved after each round."""
    visits, kept_of, barren = Counter[str](), Counter[str](), 0
    most = most_visits(sources, harvest.target)
    while not harvest.complete and not harvest.ended:
        left = [source for source in sources if visits[source.name] < most]
        left.sort(key=lambda source: (kept_of[source.name], visits[source.name]))
        needed = ceil((harvest.target - len(harvest.kept)) / PER_CALL)
        chosen = left[: min(needed, SOURCES_OF_A_ROUND)]
        if not chosen or barren == BARREN:
            harvest.ended = "nothing new came any more; more seeds or documents may help"
            break
        before = len(harvest.kept)
        candidates = await _propose(chosen, visits, screen, asking, harvest)
        visits.update(source.name for source in chosen)
        proofs = [_until_stopped(source.prove(made), harvest) for source, made in candidates]
        for (source, _), result in zip(candidates, await asking.stage("check", proofs), strict=True):
            if result is not None and _admit(result, screen, harvest):
                kept_of[source.name] += 1
        barren = 0 if len(harvest.kept) > before else barren + 1
        harvest.paid = asking.total
        harvest.save()
    harvest.save()


async def _propose(
    chosen: Sequence[Parent], visits: Counter[str], screen: TaskScreen, asking: Inquiry, harvest: Harvest
) -> list[tuple[Parent, Made]]:
    """The proposals whose answers are worth a check."""
    proposing = [_until_stopped(source.propose(visits[source.name]), harvest) for source in chosen]
    candidates = []
    for source, tasks in zip(chosen, await asking.stage("propose", proposing), strict=True):
        for made in tasks or ():
            harvest.proposed += 1
            if dropped := screen.look(made, source.text):
                harvest.dropped.append(dropped)
            else:
                candidates.append((source, made))
    return candidates


def _admit(result: Made | Dropped, screen: TaskScreen, harvest: Harvest) -> bool:
    """True if the task is kept. One more than wanted is neither kept nor dropped."""
    dropped = result if isinstance(result, Dropped) else None
    if isinstance(result, Made) and not harvest.complete:
        dropped = screen.admit(result)
        if dropped is None:
            harvest.kept.append(result)
            return True
    if dropped is not None:
        harvest.dropped.append(dropped)
    return False


async def _until_stopped(work: Awaitable[R], harvest: Harvest) -> R | None:
    """None once the budget or the models have ended it: what is under way is lost, what is done is kept."""
    try:
        return await work
    except (BudgetSpent, PolicyError) as error:
        harvest.ended = harvest.ended or str(error)
        return None
