"""Find criteria that say the same: by their wording, or by the scores that they gave.

    >>> duplicate_groups(["Mentions the unit", "The unit is mentioned", "At most 40 words"], [[], [], []])
    [[0, 1], [2]]

Texts are compared as TF-IDF vectors of words and character n-grams: no model, no service, the same on every machine.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

Vector = Mapping[str, float]

SAME_WORDING = 0.65
"""Cosine from which two criteria are one, above that of every pair of tests/rubrics/test_similarity.py that says two
things. A pair that is missed costs little, as scores and the coding rate see it too; two criteria taken for one cost
one."""

SAME_SCORES = 0.95
"""Share of judged answers with equal scores from which two criteria are one."""

FEWEST_ANSWERS = 8
"""Equal scores on fewer answers may be chance."""

_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")  # Chinese and Japanese have no spaces: each character
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NGRAMS = (3, 4)
_STOP_WORDS = """
a all an and any answer answers are as at be been being by clear clearly contain contains do does each every explicit
explicitly for from give given gives has have how in into include included includes is it its least made make makes
mention mentioned mentions of on one or own provide provides quote quoted quotes reply replies response responses should
show shown shows so some state stated states such tell tells than that the their them there they this to use used user
uses was what when where which who will with
"""
_STOPPED = frozenset(_STOP_WORDS.split())
_NEGATIONS = frozenset(("avoid", "avoids", "free", "lacks", "never", "no", "none", "nor", "not", "omits", "without"))


def tf_idf(texts: Sequence[str]) -> list[dict[str, float]]:
    """Vectors of length 1, in the order of the texts; a text without words has the empty vector.

    A feature that occurs in `df` of `n` texts counts (1 + log count) (1 + log((1 + n) / (1 + df))).
    """
    counts = [_features(text) for text in texts]
    in_texts = Counter(feature for count in counts for feature in count)
    idf = {feature: 1.0 + math.log((1 + len(texts)) / (1 + df)) for feature, df in in_texts.items()}
    return [_unit({name: (1.0 + math.log(n)) * idf[name] for name, n in count.items()}) for count in counts]


def _features(text: str) -> Counter[str]:
    """Words count as such and by their character n-grams, so that "apology" is near "apologises"."""
    words = [word for word in _WORD.findall(text.lower()) if word not in _STOPPED]
    features = Counter(words)
    for word in words:
        marked = f" {word} "
        features.update(
            marked[start : start + size] for size in _NGRAMS for start in range(max(0, len(marked) - size + 1))
        )
    return features


def _unit(vector: dict[str, float]) -> dict[str, float]:
    length = math.sqrt(math.fsum(value * value for value in vector.values()))
    return {name: value / length for name, value in vector.items()}


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of two unit vectors, at most 1."""
    return min(1.0, math.fsum(value * other[name] for name, value in one.items() if name in other))


def gram(texts: Sequence[str]) -> list[list[float]]:
    """Cosine of every text with every other; 1 with itself."""
    vectors = tf_idf(texts)
    rows = [[0.0] * len(texts) for _ in texts]
    for i, vector in enumerate(vectors):
        rows[i][i] = 1.0
        for j in range(i):
            rows[i][j] = rows[j][i] = cosine(vector, vectors[j])
    return rows


def duplicate_groups(texts: Sequence[str], columns: Sequence[Sequence[float | None]]) -> list[list[int]]:
    """Indices of criteria that say the same, in the order of first appearance; a criterion joins the first group of
    whose first member it is a duplicate.

    `columns` has for each criterion its scores of the same answers, None where it has none; it may be empty.
    """
    likeness = gram(texts)
    groups: list[list[int]] = []
    for index in range(len(texts)):
        for group in groups:
            first = group[0]
            wording = likeness[first][index] >= SAME_WORDING and _compatible(texts[first], texts[index])
            if wording or same_scores(columns[first], columns[index]):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def _compatible(one: str, other: str) -> bool:
    """True if both name the same numbers and both forbid, or both ask: "at most 40 words" is near "at most 80 words"
    and "apologises" near "does not apologise", but they are not the same."""
    return _NUMBER.findall(one) == _NUMBER.findall(other) and _is_negated(one) == _is_negated(other)


def _is_negated(text: str) -> bool:
    words = _WORD.findall(text.lower().replace("n't", " not"))
    return sum(word in _NEGATIONS for word in words) % 2 == 1


def same_scores(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """True if two criteria gave equal scores to at least 95 % of at least 8 answers that both judged. Criteria that
    gave every answer the same score tell nothing of each other."""
    both = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    varied = len({a for a, _ in both}) > 1 and len({b for _, b in both}) > 1
    return varied and len(both) >= FEWEST_ANSWERS and sum(a == b for a, b in both) >= SAME_SCORES * len(both)
