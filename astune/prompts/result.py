"""What came of a search, and the YAML that has the best texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from astune.clients.usage import Usage
from astune.monitor.disk import write_whole, writing
from astune.prompts.candidates import show_usage
from astune.training.comparison import Compared, row_to_json

SIGNIFICANT = 0.05
"""The p of the paired test below which a gain is one."""


@dataclass(frozen=True)
class PromptSearch:
    """The result of a search. `prompts` are the texts to use: the best candidate's if the test shows that it is better
    than the first one, else the first ones."""

    folder: Path
    prompts: Mapping[str, str]
    first: Mapping[str, str]
    best: Mapping[str, str]
    candidate: str
    """The name of the best one: "c0" where no other was better on the tasks of the search by more than chance."""
    ended: str
    """Why the search ended."""
    candidates: int
    dropped: int
    """Texts that were dropped, as they quote tasks, or have lost or made up a placeholder."""
    junk: int
    """Replies of the models that reflect which are no text, or none that is new."""
    episodes: int
    searching: Usage
    reflecting: Usage
    compared: Sequence[Compared] = field(repr=False)
    """The figures of the best candidate beside the first one's, on the held-out tasks; none where both are one."""
    tested: Mapping[str, Usage] = field(default_factory=dict)
    """What the test cost, by candidate."""

    @property
    def reward(self) -> Compared | None:
        """The figure that decides: the reward on held-out tasks."""
        return next((row for row in self.compared if row.figure == "reward"), None)

    @property
    def gained(self) -> bool:
        """True if the best candidate earns more on tasks that the search never saw."""
        found = self.reward
        return found is not None and found.difference.mean > 0 and found.test.p < SIGNIFICANT

    def to_json(self) -> dict[str, Any]:
        return {
            "gained": self.gained,
            "candidate": self.candidate,
            "ended": self.ended,
            "candidates": self.candidates,
            "dropped": self.dropped,
            "junk": self.junk,
            "episodes": self.episodes,
            "searching": show_usage(self.searching),
            "reflecting": show_usage(self.reflecting),
            "tested": {name: show_usage(spent) for name, spent in self.tested.items()},
            "held_out": list(map(row_to_json, self.compared)),
        }


class _Block(str):
    """A text that YAML has as a block, line by line."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def write_prompts(path: Path, found: PromptSearch) -> None:
    """Write the texts to use, and above them in words what the test said."""
    row = found.reward
    if row is None:
        said = "the first ones, as nothing better was found"
    elif found.gained:
        said = (
            f"of {found.candidate}: reward {row.first.mean:.3f} -> {row.second.mean:.3f} on {row.test.n} held-out tasks"
        )
    else:
        said = f"the first ones: {found.candidate} is no better on {row.test.n} held-out tasks (p = {row.test.p:.2f})"
    texts = {name: _Block(text) for name, text in found.prompts.items()}
    text = yaml.dump({"prompts": texts}, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=10**6)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"# The texts of {found.folder.name}, {said}\n{text}")
