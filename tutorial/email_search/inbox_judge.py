"""`InboxJudge`: the reward of an episode at an inbox, in the manner of ART-E.

    right, proved       1.0    the answer, and the mails that prove it, which the agent has read, and no others
    right               0.6    the answer
    "I don't know"      0.1    where there is an answer; where there is none, it is right, and proved by having searched
    no answer          -0.3    turns, tokens or the context ran out, or the agent never called `return_final_answer`
    wrong              -0.7

From the first of these up to 0.1 is taken for not having come near: half of it for never having been shown a mail that
proves the answer, half for never having read one. Up to 0.2 is taken for bad calls, 0.05 each: an id that no search has
shown (read, or cited), arguments that the tool does not take, a call made before, a call after the answer. So no
mischief makes a wrong answer worth as much as an honest one: the five never overlap.

Everything is read from the episode's turns, by searching again: a recorded episode can be judged anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inbox_tools import find
from inboxes import UNKNOWN

from astune import Episode, Task, Verdict
from astune.task_judge.tool_use.calls import CheckedCall, tool_calls
from astune.task_judge.tool_use.judge import ToolUseJudge

WORTH = {"proved": 1.0, "right": 0.6, "unknown": 0.1, "nothing": -0.3, "wrong": -0.7}
NEAR = 0.1
"""What being shown and reading a mail that proves the answer is worth together."""
BAD_CALL, MOST_BAD = 0.05, 0.2
COLUMNS = ("correct_tool", "correct_args", "recall")
"""Of `ToolUseJudge`: tool accuracy, argument accuracy and recall."""


@dataclass
class Conduct:
    """What an agent did, call by call."""

    answer: str | None = None
    sources: tuple[int, ...] = ()
    searched: bool = False
    shown: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    invented: int = 0
    malformed: int = 0
    repeated: int = 0
    late: int = 0

    @property
    def bad(self) -> int:
        return self.invented + self.malformed + self.repeated + self.late


class InboxJudge:
    """Tasks say the number of the `inbox`, the `kind` of the answer, its `proof` and their `expected_tools`. The
    metrics have the three columns of `ToolUseJudge` beside what the reward is made of."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._tools = ToolUseJudge(config)

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        done = look_at(tool_calls(episode.turns), task.metadata["inbox"])
        outcome = classify(done, task)
        proof = set(task.metadata["proof"])
        found = float(proof <= done.shown) if proof else float(done.searched)
        read = float(proof <= done.read) if proof else float(done.searched)
        reward = WORTH[outcome] - NEAR * (2 - found - read) / 2 - min(MOST_BAD, BAD_CALL * done.bad)
        told = await self._tools.judge(replace(task, answer=None), episode)
        columns = {name: told.metrics[name] for name in COLUMNS}
        shares = {name: float(name == outcome) for name in WORTH}
        counts = {name: float(getattr(done, name)) for name in ("invented", "malformed", "repeated", "late")}
        return Verdict(
            reward=reward,
            passed=outcome in ("proved", "right"),
            reason=f"{outcome}: {done.answer!r:.60} with {list(done.sources)}, not {task.answer!r} with {sorted(proof)}"
            f"; {done.bad} bad calls",
            metrics=columns | shares | counts | {"found": found, "read": read},
            judged_by="InboxJudge",
        )


def look_at(calls: Sequence[CheckedCall], number: int) -> Conduct:
    """What was done by these calls at the inbox of this number."""
    done, made = Conduct(), set()
    for call in calls:
        key = (call.name, repr(sorted(call.arguments.items())))
        if done.answer is not None:
            done.late += 1
        elif not call.valid or (call.name in TAKES and not takes(call)):
            done.malformed += 1
        elif key in made:
            done.repeated += 1
        else:
            made.add(key)
            _follow(done, call, number)
    return done


def _follow(done: Conduct, call: CheckedCall, number: int) -> None:
    given = call.arguments
    if call.name == "search_emails":
        done.searched = True
        done.shown |= {mail for mail, *_ in find(number, given["keywords"])}
    elif call.name == "read_email":
        known = given["message_id"] in done.shown
        done.invented += not known
        done.read |= {given["message_id"]} if known else set()
    elif call.name == "return_final_answer":
        done.answer, done.sources = given["answer"], tuple(given["sources"])
        done.invented += len(set(done.sources) - done.shown)


def takes(call: CheckedCall) -> bool:
    """True if the tool takes arguments of these types."""
    checks, given = TAKES[call.name], call.arguments
    return given.keys() == checks.keys() and all(check(given[name]) for name, check in checks.items())


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


TAKES: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "search_emails": {"keywords": _is_text},
    "read_email": {"message_id": _is_id},
    "return_final_answer": {"answer": _is_text, "sources": _are_ids},
}
"""The arguments of each tool. What other tools an agent has is not looked at."""


def classify(done: Conduct, task: Task) -> str:
    """Which of `WORTH` an episode earned."""
    if done.answer is None:
        return "nothing"
    proof = set(task.metadata["proof"])
    proved = set(done.sources) == proof and len(done.sources) == len(proof) and proof <= done.read
    if says_unknown(done.answer):
        if task.answer != UNKNOWN or not done.searched:
            return "unknown"
        return "proved" if proved else "right"
    if task.answer == UNKNOWN or read_value(done.answer, task.metadata["kind"]) != task.answer:
        return "wrong"
    return "proved" if proved else "right"


def says_unknown(answer: str) -> bool:
    """
    >>> says_unknown(" i don’t know. "), says_unknown("I don't know, perhaps 214"), says_unknown("")
    (True, False, False)
    """
    return answer.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").strip().rstrip(".").casefold() == UNKNOWN.casefold()


def read_value(answer: str, kind: str) -> str | None:
    """The value as the inbox writes it, from its usual spellings; None for anything else, and for two values.

    >>> read_value("$1,214.00", "number"), read_value("9:05", "time"), read_value("5-3", "date")
    ('1214', '09:05', '05-03')
    >>> read_value("214 or 215", "number"), read_value("", "time")
    (None, None)
    """
    text = answer.strip().rstrip(".").strip()
    if kind == "number":
        found = re.fullmatch(r"(?:hall |\$ ?)?(\d{1,3}(?:,\d{3})+|\d+)(?:\.0+)?(?: ?dollars)?", text, re.IGNORECASE)
        return None if found is None else str(int(found[1].replace(",", "")))
    if kind == "time":
        found = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
        return None if found is None else f"{int(found[1]):02d}:{found[2]}"
    found = re.fullmatch(r"(\d{1,2})-(\d{1,2})", text)
    return None if found is None else f"{int(found[1]):02d}-{int(found[2]):02d}"
