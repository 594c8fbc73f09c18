"""The weights of everything that a commit learns in its loss, and the limit on one author's share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from astune.config.online import CommitConfig
from astune.types import Sample


class Author(NamedTuple):
    """A client's user. Nobody can tell people without a name apart: of them each conversation is an author of its own,
    whose `user` is empty. `conversation` is empty of the others."""

    client: str
    user: str
    conversation: str


def weigh(parts: Sequence[Sequence[Sample]], beside: Sequence[tuple[Sequence[Sample], float]]) -> list[list[Sample]]:
    """The updates `parts` of rated answers, with what is learned `beside` them in the first. Each item of that, which
    its samples' `episode_id` tells, weighs as many times a rated answer as the number beside it says, or less: how many
    there are of a kind, and how long they are, gives none of them more. The weights of the update sum to what they did,
    or to less. Slopes become weights: the advantages of what is learned beside are 1 and -1."""
    first, *others = [list(part) for part in parts] or [[]]
    items = [(samples, times) for kind, times in beside for samples in _by_item(kind).values()]
    rated = len(_by_item(first))
    total = math.fsum(sample.weight_sum for sample in first) if rated else 1.0
    units = rated + math.fsum(times for _, times in items)
    if not items:
        return [first, *others] if parts else []
    found = [scale_weights(sample, rated / units) for sample in first]
    for samples, times in items:
        sloped = [_with_slope_as_weight(sample) for sample in samples]
        size = math.fsum(sample.weight_sum for sample in sloped)
        found += [scale_weights(sample, times * total / units / max(1.0, size)) for sample in sloped]
    return [found, *others]


def limit_authors(
    parts: Sequence[Sequence[Sample]], authors_of: Callable[[Sample], Sequence[Author]], most: float
) -> tuple[list[list[Sample]], int]:
    """The same updates, less of whoever has more than the share `most` of the weights of them all, and how many authors
    that are. An episode of several authors is theirs in equal parts. With fewer than 1 / `most` authors all have the
    same share. The weights of all updates together sum to what they did."""
    sizes: dict[Author, float] = defaultdict(float)
    samples = [sample for part in parts for sample in part]
    for sample in samples:
        authors = authors_of(sample)
        for author in authors:
            sizes[author] += sample.weight_sum / len(authors)
    limit = _limit_of(sizes, max(most, 1.0 / len(sizes))) if sizes else math.inf
    if all(size <= limit for size in sizes.values()):
        return [list(part) for part in parts], 0
    factors = {author: min(1.0, limit / size) if size else 1.0 for author, size in sizes.items()}
    kept = math.fsum(size * factors[author] for author, size in sizes.items())
    again = math.fsum(sizes.values()) / kept

    def scale(sample: Sample) -> Sample:
        authors = authors_of(sample)
        return scale_weights(sample, again * math.fsum(factors[author] for author in authors) / len(authors))

    return [[scale(sample) for sample in part] for part in parts], sum(each < 1.0 for each in factors.values())


def authors_needed(rules: CommitConfig) -> int:
    """The fewest authors of a version if users are named: with so many, none has a larger share than the larger of
    `most_per_author` and 1 / `min_episodes`."""
    return min(math.ceil(1.0 / rules.most_per_author), rules.min_episodes)


def are_enough(authors: Collection[Author], rules: CommitConfig) -> bool:
    """Tell whether a version may be made from what these say."""
    return len(authors) >= authors_needed(rules) or not any(author.user for author in authors)


def _limit_of(sizes: Mapping[Author, float], share: float) -> float:
    """The limit m of every author with m = share * (sum of all, each at most m); infinite where none is over it."""
    ordered = sorted(sizes.values(), reverse=True)
    for over in range(len(ordered)):
        left = 1.0 - over * share
        limit = share * math.fsum(ordered[over:]) / left if left > 1e-9 else 0.0
        if ordered[over] <= limit * (1.0 + 1e-9):
            return limit * (1.0 + 1e-9) if over else math.inf
    return ordered[-1]


def _by_item(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.episode_id, []).append(sample)
    return found


def scale_weights(sample: Sample, factor: float) -> Sample:
    """The sample with all its weights times `factor`."""
    return replace(sample, weights=tuple(factor * weight for weight in sample.weights))


def _with_slope_as_weight(sample: Sample) -> Sample:
    pairs = list(zip(sample.advantages, sample.weights, strict=True))
    return replace(
        sample,
        advantages=tuple(math.copysign(1.0, advantage) for advantage, _ in pairs),
        weights=tuple(abs(advantage) * weight for advantage, weight in pairs),
        imitated=True,
    )
