"""The problem that a method solves: play candidates at tasks, have texts written anew, and do not spend too much.

What a method asks for is counted when it asks, also where the disk has it from before the search was killed: so a
search that goes on decides as it would have done.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from astune.clients.usage import Usage
from astune.config.prompts import PromptsConfig
from astune.errors import AstuneError, PolicyError
from astune.monitor.jsonl import LineFile
from astune.prompts.attempts import TaskResult, result_of
from astune.prompts.candidates import Candidates, PromptCandidate, Texts
from astune.prompts.leaks import LeakCheck
from astune.prompts.reflection import MOST_CHARACTERS, ReflectionRequest, Reflector
from astune.sampling import is_text
from astune.types import Group, Task
from astune.workflow.named_texts import placeholders

T = TypeVar("T")
TRIES = 3
"""Replies that are asked for until one can be used."""
Play = Callable[[Texts, Sequence[Task], str, int], Awaitable[Sequence[tuple[Group, Usage]]]]
"""Plays tasks with texts, as the phase of that name and in that round, and tells what each task cost; what the disk has
is taken from there."""


class SearchEnds(AstuneError):
    """The search is over, for the reason that the message says."""


@dataclass
class Counts:
    """What a search has asked for so far."""

    episodes: int = 0
    spent: Usage = field(default_factory=Usage)
    reflections: Usage = field(default_factory=Usage)
    junk: int = 0
    """Replies that are no text, or none that is new."""
    dropped: int = 0
    """Texts that were dropped as they quote tasks, or have lost or made up a placeholder."""

    @property
    def cost(self) -> float | None:
        """The money for both; None where a price or the tokens of a call are not known."""
        return (self.spent + self.reflections).cost


class Problem:
    """What a method works with, from a thread of its own: its calls block."""

    def __init__(
        self,
        tasks: Sequence[Task],
        candidates: Candidates,
        play: Play,
        reflector: Reflector,
        config: PromptsConfig,
        seed: int,
        known: Mapping[str, Mapping[str, Any]],
        written: LineFile,
    ) -> None:
        """`known` are rows of reflections.jsonl by their question; new ones go to `written`."""
        self.tasks = tasks
        self.candidates = candidates
        self.config = config
        self.seed = seed
        self.round = 0
        self.counts = Counts()
        self.ended: str | None = None
        """Why the search is over."""
        self.failure: Exception | None = None
        """The error that ended it."""
        self._play, self._reflector = play, reflector
        self._known, self._written = known, written
        self._lowest = 0.0
        self._kept, self._stale = 0, 0
        self._loop = asyncio.get_running_loop()
        self._leaks: LeakCheck | None = None

    @property
    def first(self) -> Texts:
        """The texts that everything begins with."""
        return self.candidates.first.texts

    def is_over(self) -> bool:
        """True if there is nothing to search for any more; else the next round begins."""
        top = self.candidates.top
        if self.ended is None and top.results and all(result.solved for result in top.results.values()):
            self.ended = f"{top.name} solves all tasks of the search"
        kept = sum(self.candidates.fate(one) == "kept" for one in self.candidates.all)
        self._kept, self._stale = kept, self._stale + 1 if kept == self._kept else 0
        if self.ended is None and self._stale > self.config.patience:
            self.ended = f"{self.config.patience} rounds in a row (astune.prompts.patience) found nothing better"
        if self.ended is None and self.round >= self.config.rounds:
            self.ended = f"all {self.round} rounds of astune.prompts.rounds are done"
        self.round += 1
        return self.ended is not None

    def evaluate(self, texts: Texts, tasks: Sequence[int]) -> list[TaskResult]:
        """Tell what texts earn at the tasks of these numbers. Raises SearchEnds."""
        return self._wait(self.play(texts, tasks))

    def reflect(self, texts: Texts, names: Sequence[str], tasks: Sequence[int]) -> dict[str, str]:
        """New texts for `names`, from what the candidate did at tasks that it has played; fewer, or none, where nothing
        is wrong with it or no reply can be used. Raises SearchEnds."""
        try:
            return self._wait(self._reflect(texts, names, tasks))
        except SearchEnds:
            raise
        except Exception as error:  # a method may take it for a reply that was none
            self.failure, self.ended = error, str(error)
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def play(self, texts: Texts, tasks: Sequence[int]) -> list[TaskResult]:
        """Do as `evaluate`, on the event loop."""
        self._check_end()
        candidate = self.candidates.find(texts) or self.candidates.add(texts, (), self.round)
        missing = [self.tasks[at] for at in dict.fromkeys(tasks) if self.tasks[at].task_id not in candidate.results]
        if missing:
            self._check_budget(len(missing) * self.config.attempts)
            played = await self._play(candidate.texts, missing, f"prompt/{candidate.name}", self.round)
            self._add(candidate, played)
            self.candidates.save()
        return [candidate.results[self.tasks[at].task_id] for at in tasks]

    def _add(self, candidate: PromptCandidate, played: Sequence[tuple[Group, Usage]]) -> None:
        if candidate is self.candidates.first:
            rewards = [episode.reward for group, _ in played for episode in group.episodes]
            self._lowest = min([self._lowest, *(reward for reward in rewards if reward is not None)])
        for group, spent in played:
            result = result_of(group.episodes, self._lowest, spent)
            candidate.results[group.task.task_id] = result
            self.counts.episodes += len(group.episodes)
            self.counts.spent += result.spent

    def _check_budget(self, episodes: int) -> None:
        most, limit = self.config.max_episodes, self.config.max_cost
        if most is not None and self.counts.episodes + episodes > most:
            self._end(
                f"astune.prompts.max_episodes: {self.counts.episodes} of {most} episodes, and it needs {episodes}"
            )
        self._check_cost(limit)

    def _check_cost(self, limit: float | None) -> None:
        cost = self.counts.cost
        if limit is not None and cost is None:
            self._end(f"astune.prompts.max_cost {limit:g}: an API did not report tokens, so the cost is unknown")
        if limit is not None and cost is not None and cost >= limit:
            self._end(f"astune.prompts.max_cost: {cost:.4g} of {limit:g} are spent")

    def _end(self, why: str) -> None:
        self.ended = why
        raise SearchEnds(why)

    def _check_end(self) -> None:
        if self.ended is not None:
            raise SearchEnds(self.ended)

    async def _reflect(self, texts: Texts, names: Sequence[str], tasks: Sequence[int]) -> dict[str, str]:
        self._check_end()
        parent = self.candidates.find(texts)
        assert parent is not None, "a method reflects on what it has played"
        results = [parent.results[self.tasks[at].task_id] for at in tasks]
        if all(result.solved for result in results):
            return {}
        new: dict[str, str] = {}
        for name in names:
            kept = tuple(sorted(placeholders(self.first[name])))
            request = ReflectionRequest(name, texts[name], texts, results, kept)
            if (text := await self._ask(parent, request)) is not None:
                new[name] = text
        if new:
            self.candidates.add({**texts, **new}, (parent.name,), self.round)
        return new

    async def _ask(self, parent: PromptCandidate, request: ReflectionRequest) -> str | None:
        """A text that can be used; None after three that cannot."""
        for attempt in range(TRIES):
            row = await self._row_of(parent, request, attempt)
            self.counts.reflections += Usage(**row["usage"])
            text, wrong = row["text"], row["wrong"]
            if text is None or (wrong := self._find_unusable(request, text)):
                self.counts.junk += 1
            elif wrong := self._find_fault(request, text):
                self.counts.dropped += 1
                self.candidates.add({**request.texts, request.name: text}, (parent.name,), self.round, wrong)
            else:
                return str(text)
            request = replace(request, wrong=wrong)
        return None

    async def _row_of(self, parent: PromptCandidate, request: ReflectionRequest, attempt: int) -> Mapping[str, Any]:
        question = _digest(request, attempt)
        most = self.config.max_calls
        if most is not None and self.counts.reflections.calls >= most:
            self._end(f"astune.prompts.max_calls: all {most} calls of the models that reflect are made")
        self._check_cost(self.config.max_cost)
        if question in self._known:
            return self._known[question]
        try:
            reply = await self._reflector.reflect(request, attempt)
        except PolicyError as error:
            self._end(f"no model reflects: {error}")
            raise
        row = {
            "question": question,
            "step": self.round,
            "parent": parent.name,
            "name": request.name,
            "attempt": attempt,
            **asdict(reply),
        }
        self._written.append_plain(row)
        self._written.sync()
        return row

    def _find_unusable(self, request: ReflectionRequest, text: str) -> str:
        """Why a reply is no new text; "" if it is one."""
        if not text:
            return "it is empty"
        if not is_text(text):
            return "it holds half of a surrogate pair, which is no sign"
        if len(text) > max(MOST_CHARACTERS, 2 * len(self.first[request.name])):
            return f"it has {len(text)} characters, expected up to {MOST_CHARACTERS}"
        return "it was tried before" if self.candidates.find({**request.texts, request.name: text}) else ""

    def _find_fault(self, request: ReflectionRequest, text: str) -> str:
        """Why a new text cannot be played; "" if it can."""
        if lost := set(request.placeholders) - placeholders(text):
            return f"it has lost {', '.join(f'{{{name}}}' for name in sorted(lost))}"
        if added := placeholders(text) - set(request.placeholders):
            return f"nothing fills its placeholder {', '.join(f'{{{name}}}' for name in sorted(added))}"
        if self._leaks is None:
            self._leaks = LeakCheck(self.tasks, self.first)
        return self._leaks.find(text) or ""


def _digest(request: ReflectionRequest, attempt: int) -> str:
    text = json.dumps([asdict(request), attempt], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
