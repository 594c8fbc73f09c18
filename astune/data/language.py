"""Tell the language of a short text: by its script, and where that is Latin by its most frequent words. No model."""

from __future__ import annotations

import re
from collections import Counter

from astune.support.words import words_of

FEWEST = 2
"""Frequent words that a text must have before a language in Latin script is named."""
SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af]"),
    "zh": re.compile("[\u3400-\u9fff]"),
    "Cyrillic": re.compile("[\u0400-\u04ff]"),
    "Arabic": re.compile("[\u0600-\u06ff]"),
    "Hebrew": re.compile("[\u0590-\u05ff]"),
    "Greek": re.compile("[\u0370-\u03ff]"),
    "Devanagari": re.compile("[\u0900-\u097f]"),
    "Thai": re.compile("[\u0e00-\u0e7f]"),
}
"""In this order: Japanese has Chinese signs too."""
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")
FREQUENT = {
    "en": "the of and to in is was that it for with as are his her this by from have has how many much what which who "
    "when does did do each if at on be or an",
    "de": "der die das und ist nicht ein eine zu den dem des mit von wie viele viel was welche welcher wer wann hat im "
    "auf für sind wird aus bei am",
    "fr": "le la les et est une des du que qui dans pour pas sur avec il elle combien quel quelle quels sont au aux ce "
    "cette chaque ont",
    "es": "el la los las y es una un del que en por para con no su cuántos cuántas cuánto cuál qué quién son al cada "
    "tiene cuando",
    "it": "il lo la i gli le e è un una di che in per con non quanti quante quanto quale chi sono del della ogni ha",
    "pt": "o a os as e é um uma do da que em por para com não quantos quantas quanto qual quem são dos das cada tem",
    "nl": "de het een en is niet van in op te dat voor met hoeveel wat welke wie wanneer zijn aan heeft er",
}
_FREQUENT = {name: frozenset(words.split()) for name, words in FREQUENT.items()}


def language_of(text: str) -> str | None:
    """The language or script of a text; None where it cannot be told.

    >>> [language_of(text) for text in ("How many apples are left?", "Wie viele Äpfel sind es?", "还剩多少?", "6 * 7")]
    ['en', 'de', 'zh', None]
    """
    counts = {name: len(pattern.findall(text)) for name, pattern in SCRIPTS.items()}
    if counts["ja"] and counts["ja"] * 4 >= counts["zh"]:
        counts["ja"] += counts.pop("zh")
    script = max(counts, key=lambda name: counts[name])
    latin = len(_LATIN.findall(text))
    if counts[script] and counts[script] * 3 > latin:  # a sign of Chinese says as much as a few letters
        return script
    words = words_of(text)
    found = Counter({name: sum(word in frequent for word in words) for name, frequent in _FREQUENT.items()})
    (first, most), (_, second) = found.most_common(2)
    return first if most >= FEWEST and most > second else None
