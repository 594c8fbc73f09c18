"""Texts as words, to see how much two of them share."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

WORD = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+"
_WORD = re.compile(WORD)
_WORD_OR_SIGN = re.compile(WORD + r"|[-+*/^=<>%×÷](?=\s*(?:[\d(]|\w\b))")  # noqa: RUF001
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_LOOK_ALIKES = str.maketrans("аеорсухіјѕαοινρ", "aeopcyxijsaoivp")  # noqa: RUF001

Words = tuple[str, ...]


def plain(text: str) -> str:
    """The text as all would write it who say the same: small letters of one width, without signs that nobody sees, and
    numbers without commas.

    >>> plain("Ｐay\u200d １,２００")
    'pay 1200'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf").translate(_LOOK_ALIKES)
    return _THOUSANDS.sub("", text.casefold())


def words_of(text: str) -> Words:
    """Words in small letters; of scripts without spaces each sign.

    >>> words_of("Order 66-B, 東京")
    ('order', '66', 'b', '東', '京')
    """
    return tuple(_WORD.findall(plain(text)))


def signs_of(text: str) -> Words:
    """The words, and the signs of arithmetic, without which two formulas are alike.

    >>> signs_of("What is 3 - x?")
    ('what', 'is', '3', '-', 'x')
    """
    return tuple(_WORD_OR_SIGN.findall(plain(text)))


def features(text: str) -> frozenset[Words]:
    """The words and signs of a text and the pairs of neighbours: what a copy with some words changed, or put in another
    order, still shares."""
    words = signs_of(text)
    return frozenset([*((word,) for word in words), *pairwise(words)])


def holds(words: Words, wanted: Words) -> bool:
    """True if `wanted` stand in `words`, one after the other."""
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words) - len(wanted) + 1))
