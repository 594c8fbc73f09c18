"""The loop that both commands share: sources propose, proposals are screened, checked and admitted, round by round.

The source with the fewest kept tasks is asked next, so that no seed or document makes them all. A round is small, and
what it kept is saved; a run that was cut off and is started again finds its replies in the cache and ends the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from astune.clients.asking import Inquiry
from astune.clients.reply_cache import cache_key
from astune.clients.usage import BudgetSpent
from astune.data.checks import Checks
from astune.data.made import Dropped, Harvest, Made
from astune.data.prompts import Message, Proposals, ProposedTask
from astune.data.screen import TaskScreen
from astune.errors import PolicyError

PER_CALL = 4
"""Tasks that a question asks for."""
SOURCES_OF_A_ROUND = 8
BALANCE = 2
"""The most that a kind of tasks may have of its even share."""
BARREN = 3
"""Rounds in a row without a kept task after which it ends."""

R = TypeVar("R")


@dataclass(frozen=True)
class Parent(ABC):
    """A seed, or a passage of a document, that tasks are made from, in the language of its `text`. `number` is its
    place among all, so that not all begin with one kind."""

    name: str
    text: str
    number: int
    kinds: Sequence[str]
    checks: Checks

    def kind_of(self, visit: int) -> str:
        """The kind of tasks to ask for; they take turns."""
        return self.kinds[(self.number + visit) % len(self.kinds)]

    @abstractmethod
    def ask(self, kind: str, visit: int) -> list[Message]:
        """Word the question to the model."""

    @abstractmethod
    def make(self, proposed: ProposedTask, lineage: dict[str, Any]) -> Made:
        """Make a task of what the model wrote."""

    @abstractmethod
    async def prove(self, made: Made) -> Made | Dropped:
        """The task with what proves its answer, or why it is dropped."""

    async def propose(self, visit: int) -> list[Made]:
        """Proposals, others at each visit, no more than were asked for; none where no reply could be used."""
        kind = self.kind_of(visit)
        messages = self.ask(kind, visit)
        reply = await self.checks.asking.ask(messages, Proposals)
        if reply is None:
            return []
        lineage = {"kind": kind, "model": reply.model, "prompt": cache_key(messages)[:16]}
        return [self.make(one, lineage) for one in reply.value.tasks[:PER_CALL]]


def most_visits(sources: Sequence[Parent], target: int) -> int:
    """The most questions about a source: thrice what it takes where all is kept, and twice more."""
    return 2 + 3 * ceil(target / (PER_CALL * len(sources)))


async def grow(sources: Sequence[Parent], screen: TaskScreen, asking: Inquiry, harvest: Harvest) -> None:
    """Make tasks until there are as many as wanted, nothing more comes, or the budget or the models end it."""
    visits, kept_of, barren = Counter[str](), Counter[str](), 0
    most = most_visits(sources, harvest.target)
    kinds = {kind for source in sources for kind in source.kinds}
    harvest.most_of_a_kind = max(PER_CALL, ceil(BALANCE * harvest.target / len(kinds)))
    while not harvest.complete and not harvest.ended:
        for source in sources:
            while visits[source.name] < most and harvest.is_full(source.kind_of(visits[source.name])):
                visits[source.name] += 1
        left = [source for source in sources if visits[source.name] < most]
        left.sort(key=lambda source: (kept_of[source.name], visits[source.name]))
        needed = ceil((harvest.target - len(harvest.kept)) / PER_CALL)
        chosen = left[: min(needed, SOURCES_OF_A_ROUND)]
        if not chosen or barren == BARREN:
            said = "nothing new came any more; more seeds or documents may help"
            harvest.ended = said if harvest.proposed else "no reply of the models could be used"
            break
        before = len(harvest.kept)
        candidates = await _propose(chosen, visits, screen, asking, harvest)
        visits.update(source.name for source in chosen)
        proofs = [_until_stopped(source.prove(made), harvest) for source, made in candidates]
        for (source, _), result in zip(candidates, await asking.stage("check", proofs), strict=True):
            if result is not None and _admit(result, screen, harvest):
                kept_of[source.name] += 1
        barren = 0 if len(harvest.kept) > before else barren + 1
        harvest.paid, harvest.now = asking.total, asking.models.usage
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
            if dropped := screen.look(made, source.text) or harvest.look(made):
                harvest.dropped.append(dropped)
            else:
                candidates.append((source, made))
    return candidates


def _admit(result: Made | Dropped, screen: TaskScreen, harvest: Harvest) -> bool:
    """True if the task is kept. One more than wanted is neither kept nor dropped."""
    if isinstance(result, Made):
        if harvest.complete:
            return False
        dropped = harvest.look(result) or screen.admit(result)
        if dropped is None:
            harvest.kept.append(result)
            return True
        result = dropped
    harvest.dropped.append(result)
    return False


async def _until_stopped(work: Awaitable[R], harvest: Harvest) -> R | None:
    """None once the budget or the models have ended it: what is under way is lost, what is done is kept."""
    try:
        return await work
    except (BudgetSpent, PolicyError) as error:
        harvest.ended = harvest.ended or str(error)
        return None
