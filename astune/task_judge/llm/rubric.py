"""A rubric: criteria with weights and scales, in a file that people read, edit and keep versions of.

schema: astune.rubric/1
name: support-answers
criteria:
- id: names-the-fee
  theme: Completeness
  text: The answer names the fee and when it is due.
  weight: 0.6
  scale: binary
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, NonNegativeFloat, ValidationInfo, field_validator, model_validator

from astune.config.section import Section
from astune.config.source import Dumper
from astune.task_judge.llm.rubric_file import read_rubric_file, validate

logger = logging.getLogger(__name__)

SCHEMA_VERSIONS = (1,)
HEAD = """\
# A rubric: what an answer is judged by. Edit it as you like; set `edited: true` on what `astune rubrics --keep-edited`
# must leave alone. The reward is the mean of (score - min) / (max - min), weighted by `weight`.
"""


class Criterion(Section):
    """One thing that an answer is scored by, from `min` to `max` in whole numbers; `binary` is 0 or 1."""

    id: str = Field(pattern=r"^[^\s|][^|\r\n]*$", max_length=80)
    theme: str = ""
    text: str = Field(min_length=1)
    """The text says what earns the highest score."""
    weight: NonNegativeFloat = 1.0
    scale: Literal["binary", "scaled"] = "binary"
    min: int = 0
    max: int = 1
    anchors: dict[int, str] = Field(default_factory=dict)
    """Texts that say what earns a score, by score."""
    edited: bool = False
    """True if a person wrote it, so that a later run of `astune rubrics --keep-edited` keeps it."""
    sources: tuple[str, ...] = ()
    """Ids of the examples it came from."""

    @model_validator(mode="before")
    @classmethod
    def _set_scale_maximum(cls, value: Any) -> Any:
        scaled = isinstance(value, Mapping) and value.get("scale") == "scaled"
        return {"max": 4, **value} if scaled else value

    @field_validator("max")
    @classmethod
    def _is_a_scale(cls, value: int, info: ValidationInfo) -> int:
        low = info.data.get("min")
        if info.data.get("scale") == "binary" and (low, value) != (0, 1):
            raise ValueError(f"min 0 and max 1 with scale 'binary' ('scaled' takes others), found min {low}")
        if low is not None and value <= low:
            raise ValueError(f"a number above min {low}")
        return value

    @field_validator("anchors")
    @classmethod
    def _are_on_the_scale(cls, value: dict[int, str], info: ValidationInfo) -> dict[int, str]:
        low, high = info.data.get("min"), info.data.get("max")
        if low is not None and high is not None and any(not low <= score <= high for score in value):
            raise ValueError(f"scores from {low} to {high}")
        return value

    def share(self, score: float) -> float:
        """The place of `score` on the scale, from 0 to 1."""
        return (score - self.min) / (self.max - self.min)


class Rubric(Section):
    """Criteria, where they come from, and how well they were found to judge. At least one weight is above 0."""

    schema_version: int = 1
    name: str = Field("rubric", min_length=1)
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    provenance: dict[str, Any] = Field(default_factory=dict)
    """The way it was made: examples, models, date. `digest` in it is the digest of the criteria that the report is
    of."""
    report: dict[str, Any] = Field(default_factory=dict)

    @field_validator("criteria")
    @classmethod
    def _are_a_rubric(cls, value: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        twice = [name for name, times in Counter(criterion.id for criterion in value).items() if times > 1]
        if twice:
            raise ValueError(f"criteria with an id of their own; {twice[0]!r} stands twice")
        if value and not any(criterion.weight for criterion in value):
            raise ValueError("at least one weight above 0")
        return value

    @property
    def pass_at(self) -> float:
        """The reward from which an answer counts as good, as it was learned; 0.5 where that is not said."""
        learned = self.provenance.get("pass_at")
        return float(learned) if isinstance(learned, int | float) else 0.5

    @property
    def digest(self) -> str:
        """Sixteen hex digits of all that scores and reward depend on. Themes, sources and names do not count."""
        judged_by = {"id", "text", "weight", "min", "max", "anchors"}
        content = [criterion.model_dump(mode="json", include=judged_by) for criterion in self.criteria]
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def load_rubric(path: Path) -> Rubric:
    """Reads a rubric. Raises `ConfigError` that names file, line and key of all that is wrong.

    Criteria that were changed since the report was written are taken as they are; a warning says so.
    """
    rubric = validate(Rubric, read_rubric_file(path, SCHEMA_VERSIONS))
    made = rubric.provenance.get("digest")
    if made is not None and made != rubric.digest:
        logger.warning("%s: the criteria were edited since the report in it was written: it is of the old ones", path)
    return rubric


def save_rubric(rubric: Rubric, path: Path) -> None:
    """Writes what `load_rubric` reads back as an equal rubric, in one step: a crash leaves the old file."""
    tree = {
        "schema": f"astune.rubric/{rubric.schema_version}",
        "name": rubric.name,
        "criteria": [_for_people(criterion) for criterion in rubric.criteria],
        "provenance": rubric.model_dump(mode="json")["provenance"],
        "report": rubric.model_dump(mode="json")["report"],
    }
    text = yaml.dump(tree, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(HEAD + text, encoding="utf-8")
    os.replace(new, path)


class _PlainDumper(Dumper):
    """Writes a value out wherever it stands, without YAML's references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Line breaks of Unicode are escaped: PyYAML writes them as they are and reads them as others."""
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)


def _for_people(criterion: Criterion) -> dict[str, Any]:
    """The fields that say something: no empty ones, and no limits of a binary scale."""
    values = criterion.model_dump()
    values["sources"] = list(criterion.sources)
    unsaid = {name for name in ("theme", "anchors", "edited", "sources") if not values[name]}
    if criterion.scale == "binary":
        unsaid |= {"min", "max"}
    return {name: value for name, value in values.items() if name not in unsaid}
