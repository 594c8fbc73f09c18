"""The judge by rules: plain words, and whether the user asks the same again. It needs no model, and misses irony.

The words and signs that ship stand in `follow_words.yaml`; `astune.online.feedback.follow.words` and `signs` add to
them or change them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from astune.config.online import FollowConfig
from astune.online.follow.followed import Followed
from astune.online.follow.verdict import FollowVerdict, Vote

SHIPPED = Path(__file__).with_name("follow_words.yaml")
SAME = 0.8
"""Share of the words of two questions that are the same, from which they are the same question."""
ALIKE = 0.5
"""The same, from which one is the other in new words, if all numbers in them are equal."""
MOST_HINT = 300
_WORD = re.compile(r"\w+")
_CLAUSE = re.compile(r"[^.!?;,\n。！？；，]+[?？]?")  # noqa: RUF001
_LETTERS = re.compile(r"[a-z0-9' ]+")


class RulesOfFollowing:
    """Votes by the first rule that says something:

    1. The sign of the kind: `retry`, `edit` (of a question, in much the same words), `corrected`, `silence`.
    2. Words of the next message; the longest words first, each part of the message once. Where some please and some
       complain, the complaint counts.
    3. A next message that asks the same again (`repeat`), or the same in other words (`rephrase`).
    """

    def __init__(self, config: FollowConfig) -> None:
        shipped = _load_shipped()
        words = {_plain(word): vote for word, vote in (shipped["words"] | config.words).items()}
        self._words = sorted(words.items(), key=lambda pair: -len(pair[0]))
        self._signs: Mapping[str, Vote] = shipped["signs"] | config.signs
        self._wishes: tuple[str, ...] = tuple(map(_plain, shipped["wishes"]))
        self._asks: tuple[str, ...] = tuple(map(_plain, shipped["asks"]))
        self._goes_on: tuple[str, ...] = tuple(map(_plain, shipped["goes_on"]))

    async def judge(self, seen: Followed) -> FollowVerdict:
        if seen.kind != "message":
            alike = seen.kind != "edit" or _is_again(seen.question, seen.said)
            hint = seen.said[:MOST_HINT] if seen.kind == "corrected" else None
            vote: Vote = self._signs[seen.kind] if alike else 0
            return FollowVerdict(vote, f"what followed is a sign: {seen.kind}" if vote else "no sign", hint)
        said = _plain(seen.said)
        found = self._find_words(said)
        for vote in (-1, 1):
            word = next((word for word, its_vote in found if its_vote == vote), None)
            if word is not None:
                return FollowVerdict(vote, f"the user says {word!r}", self._find_wish(seen.said) if vote < 0 else None)
        again = _is_again(seen.question, seen.said)
        if again is not None:
            return FollowVerdict(self._signs[again], f"what followed is a sign: {again}")
        return FollowVerdict(0, "no word that tells anything")

    def asks_more(self, said: str, vote: Vote) -> bool:
        """True if a message goes on after what it says of the answer, as "Thanks! And what is 5+5?". After a complaint
        a question is of the same answer, unless it begins as one of something else does."""
        goes_on = False
        for clause in _CLAUSE.findall(said):
            plain, asks = _plain(clause), clause.endswith(("?", "？"))  # noqa: RUF001
            if any(vote for _, vote in self._find_words(plain)):
                continue
            goes_on = goes_on or any(_pattern(word).match(plain) for word in self._goes_on)
            wants = goes_on or any(_pattern(word).match(plain) for word in self._asks)
            if asks and goes_on if vote < 0 else asks or wants:
                return True
        return False

    def _find_words(self, said: str) -> list[tuple[str, Vote]]:
        found, left = [], said
        for word, vote in self._words:
            pattern = _pattern(word)
            if pattern.search(left):
                found.append((word, vote))
                left = pattern.sub(" | ", left)
        return found

    def _find_wish(self, said: str) -> str | None:
        """The first sentence that says what was wanted."""
        for sentence in re.split(r"(?<=[.!?。！？])\s*|\n", said):  # noqa: RUF001
            if any(_pattern(wish).search(_plain(sentence)) for wish in self._wishes):
                return sentence.strip()[:MOST_HINT]
        return None


def _is_again(question: str, said: str) -> str | None:
    """`repeat` if it asks the same, `rephrase` if it asks the same in other words. Other numbers ask something else."""
    before, after = set(_WORD.findall(_plain(question))), set(_WORD.findall(_plain(said)))
    if not before or not after or _numbers(before) != _numbers(after):
        return None
    shared = len(before & after)
    if shared >= SAME * len(before | after):
        return "repeat"
    return "rephrase" if shared >= ALIKE * min(len(before), len(after)) and min(len(before), len(after)) > 3 else None


def _numbers(words: set[str]) -> set[str]:
    return {word for word in words if any(letter.isdigit() for letter in word)}


def _plain(text: str) -> str:
    """Small letters, plain apostrophes, single spaces."""
    return " ".join(text.casefold().replace("\u2019", "'").split())


@cache
def _pattern(word: str) -> re.Pattern[str]:
    """Whole words; Chinese has no spaces between them."""
    if _LETTERS.fullmatch(word):
        return re.compile(rf"(?<![\w']){re.escape(word)}(?![\w'])")
    return re.compile(re.escape(word))


@cache
def _load_shipped() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    return loaded
