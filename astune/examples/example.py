"""Examples, from which a run learns in the place of episodes, and the lines of a file that give none."""

from __future__ import annotations

from dataclasses import dataclass, field

from astune.types import Timeline


@dataclass(frozen=True)
class TrainingExample:
    """One row to imitate, or those of a preferred answer and of a rejected one, or of a good or a bad one. `place` is
    `file:line`."""

    rows: tuple[Timeline, ...]
    place: str
    liked: tuple[bool, ...] = (True,)
    """For each row whether it is of a good, or the preferred, answer."""


@dataclass
class _Cause:
    first: str
    is_fault: bool
    count: int = 1


@dataclass
class LeftOutExamples:
    """Lines and episodes that were left out. A fault is of the line: others like it may be lost as well. What is none
    belongs to the method, such as attempts whose rewards are equal."""

    _causes: dict[str, _Cause] = field(default_factory=dict)

    def add(self, cause: str, place: str, detail: str = "", *, is_fault: bool = False) -> None:
        """`cause` is the same for all that are counted together; `detail` is shown of the first."""
        if cause in self._causes:
            self._causes[cause].count += 1
        else:
            self._causes[cause] = _Cause(f"{place}: {detail}" if detail else place, is_fault)

    def why_none(self) -> str:
        """The end of a sentence that says that there is no example."""
        return f"; left out are {'; '.join(self.list_causes())}" if self._causes else ": the file is empty"

    def list_causes(self, *, faults: bool | None = None) -> list[str]:
        """A text for each cause, `3 that nobody judged (the first: train.jsonl:7)`; of faults alone, or of others."""
        return [
            f"{each.count:,} {cause} (the first: {each.first})"
            for cause, each in self._causes.items()
            if faults in (None, each.is_fault)
        ]
