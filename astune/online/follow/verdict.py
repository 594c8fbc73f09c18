"""A judge's word on what followed an answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from astune.config.online import FollowConfig
from astune.errors import JudgeError, PluginError
from astune.online.follow.followed import Followed
from astune.plugins import load_plugin

KEY = "astune.online.feedback.follow"
Vote = Literal[-1, 0, 1]
BUILTIN = {
    "rules": "astune.online.follow.rules:RulesOfFollowing",
    "model": "astune.online.follow.asked:AskedOfFollowing",
}
"""The judges that ship, by the names that `astune.online.feedback.follow.judge` may have."""


@dataclass(frozen=True)
class FollowVerdict:
    """`vote` is 1 where what followed says that the answer was good, -1 that it was not, 0 where it says neither. The
    `reason` quotes nobody. `hint` is what would have been better, in a sentence, where that was said."""

    vote: Vote
    reason: str
    hint: str | None = None


@runtime_checkable
class FollowJudge(Protocol):
    """Says what followed an answer tells of it. Many are asked about at the same time."""

    async def judge(self, seen: Followed) -> FollowVerdict:
        """Raises JudgeError where it cannot tell."""


def make_follow_judge(config: FollowConfig) -> FollowJudge | None:
    """The judge that `astune.online.feedback.follow.judge` names; None where it names none. A class is made with the
    section, a function is called for each `Followed`. Raises PluginError for what is no judge."""
    if config.judge is None:
        return None
    found = load_plugin(config.judge, kind="judge of what followed", builtin=BUILTIN)
    made = found(config) if isinstance(found, type) else _Function(found)
    if not isinstance(made, FollowJudge) or not inspect.iscoroutinefunction(made.judge):
        raise PluginError(f"{KEY}.judge: {config.judge!r} has no method async judge(self, seen) -> FollowVerdict")
    return made


def check_follow_verdict(found: object) -> FollowVerdict:
    """The verdict, if it is one. Raises JudgeError for anything else: a vote that is none of -1, 0 and 1."""
    if not isinstance(found, FollowVerdict) or found.vote not in (-1, 0, 1):
        raise JudgeError(f"the judge returned {found!r:.200}; expected a FollowVerdict with a vote of -1, 0 or 1")
    return found


class _Function:
    """A function as a judge."""

    def __init__(self, function: Callable[[Followed], Any]) -> None:
        self._function = function

    async def judge(self, seen: Followed) -> FollowVerdict:
        found = self._function(seen)
        return check_follow_verdict(await found if inspect.isawaitable(found) else found)
