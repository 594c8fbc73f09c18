"""Find the changes that a person made in a learned rubric."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from astune.task_judge.llm.rubric import Criterion, Rubric


@dataclass(frozen=True)
class Edits:
    """`criteria` were written or changed by a person, in this file or in one before it, and are marked `edited`.
    `removed` are the ids of those that were taken out."""

    criteria: tuple[Criterion, ...] = ()
    removed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.criteria or self.removed)


def criterion_digest(criterion: Criterion) -> str:
    """12 hexadecimal digits of all that a person may change in it."""
    content: dict[str, Any] = criterion.model_dump(mode="json", exclude={"edited", "sources"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def read_learned_digests(rubric: Rubric) -> dict[str, str]:
    """By id, the digests of the criteria as they were learned; of a rubric that a person wrote, none."""
    digests = rubric.provenance.get("criteria", {})
    return {str(name): str(digest) for name, digest in digests.items()} if isinstance(digests, dict) else {}


def edits_of(rubric: Rubric) -> Edits:
    """Found by the digests in the provenance; what a person marked `edited` counts too."""
    learned = read_learned_digests(rubric)
    edited = [one for one in rubric.criteria if one.edited or learned.get(one.id) != criterion_digest(one)]
    removed = learned.keys() - {one.id for one in rubric.criteria}
    return Edits(tuple(one.model_copy(update={"edited": True}) for one in edited), frozenset(removed))
