"""Texts as words, to see how much two of them share."""

from __future__ import annotations

import re
from itertools import pairwise

WORD = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+"
_WORD = re.compile(WORD)
_WORD_OR_SIGN = re.compile(WORD + r"|[-+*/^=<>%×÷](?=\s*(?:[\d(]|\w\b))")  # noqa: RUF001

Words = tuple[str, ...]


def words_of(text: str) -> Words:
    """Words in small letters; of scripts without spaces each sign.

    >>> words_of("Order 66-B, 東京")
    ('order', '66', 'b', '東', '京')
    """
    return tuple(_WORD.findall(text.lower()))


def signs_of(text: str) -> Words:
    """The words, and the signs of arithmetic, without which two formulas are alike.

    >>> signs_of("What is 3 - x?")
    ('what', 'is', '3', '-', 'x')
    """
    return tuple(_WORD_OR_SIGN.findall(text.lower()))


def features(text: str) -> frozenset[Words]:
    """The words and signs of a text and the pairs of neighbours: what a copy with some words changed, or put in another
    order, still shares."""
    words = signs_of(text)
    return frozenset([*((word,) for word in words), *pairwise(words)])


def holds(words: Words, wanted: Words) -> bool:
    """True if `wanted` stand in `words`, one after the other."""
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words) - len(wanted) + 1))
