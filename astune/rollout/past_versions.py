"""Opponents from the past: earlier versions of a model that is trained (`past_of` of `astune.models`).

    wolf         v0 ... v5 ... v10 ... v15            it learns
                 |      |      |
    rival      rival rival@1 rival@2                  its places; one is drawn for all attempts at a task

The first version stays, in the place that has the model's own name: evaluations are against it, so that their figures
can be compared from step to step. The others are the newest. An episode tells which it met: `Turn.model` is `rival`,
`Turn.policy_version` the version of the wolf.

A version whose place a newer one is to have is not drawn any more, and leaves it once no step is under way that met it:
at once, unless rollouts are ahead of training.

By win rate a version is drawn in proportion to the square of how often it wins, as in AlphaStar's prioritised
fictitious self-play. A version that was not met yet counts as one that wins every second time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

from astune.algorithm.batch_rules import is_right
from astune.config.model import NamedModelConfig
from astune.errors import RunFolderError
from astune.types import Episode, Group

FILE = "versions.json"
REMEMBERED = 0.9
"""The part of what is known of win rates that counts on after a step: the others learn meanwhile."""


class VersionPlaces(Protocol):
    """Room for versions of a model beside it. The policy answers for each under its name."""

    names: Sequence[str]

    def keep(self, name: str) -> None:
        """Have the place answer as the model does now, under the same version."""

    def save(self, name: str, folder: Path) -> None:
        """Write what `load` needs. Raises OSError where the disk does not take it."""

    def load(self, name: str, folder: Path, version: int) -> None:
        """Have the place answer with what `save` wrote. Raises ModelError where it is broken."""


@dataclass
class Kept:
    """A version in its place, how many episodes it met, and how many of these it won; late ones count more."""

    version: int
    met: float = 0.0
    won: float = 0.0

    @property
    def weight(self) -> float:
        return ((self.won + 1.0) / (self.met + 2.0)) ** 2


class PastVersions:
    """The versions that are kept of a model, as `config` says. `name` is that under which agents meet them."""

    def __init__(self, name: str, config: NamedModelConfig, places: VersionPlaces) -> None:
        self.name, self._config, self._places = name, config, places
        self.kept = {places.names[0]: Kept(0)}
        self._leaving: str | None = None
        self._met: dict[int, set[str]] = {}
        """The places that were drawn, by the steps under way."""

    def draw(self, seed: int, step: int) -> str:
        """Draw a version for a task of a step: the name of its place. Equal seeds draw the same."""
        there = {name: kept for name, kept in self.kept.items() if name != self._leaving}
        weights = [1.0 if self._config.draw == "uniform" else kept.weight for kept in there.values()]
        drawn = random.Random(f"{self.name}/{seed}").choices([*there], weights)[0]
        self._met.setdefault(step, set()).add(drawn)
        return drawn

    def finish_step(
        self, step: int, groups: Sequence[Group], trained: Collection[str], version: int
    ) -> dict[str, float]:
        """Count who won in the groups of a step, and keep the model if it is the turn of its `version`. `trained` are
        the models that learn. Returns figures."""
        self._met.pop(step, None)
        by_version = {kept.version: kept for kept in self.kept.values()}
        for kept in self.kept.values():
            kept.met, kept.won = REMEMBERED * kept.met, REMEMBERED * kept.won
        points = []
        for episode in (episode for group in groups for episode in group.episodes):
            met = {turn.policy_version for turn in episode.turns if turn.model == self.name}
            point = share_won(episode, self.name, trained)
            if met and point is not None:
                kept = by_version[met.pop()]
                kept.met, kept.won = kept.met + 1.0, kept.won + point
                points.append(point)
        if version - max(by_version) >= self._config.every:
            place = next((name for name in self._places.names if name not in self.kept), None) or self._find_oldest()
            self._leaving = place if any(place in met for met in self._met.values()) else None
            if self._leaving is None:
                self._places.keep(place)
                self.kept[place] = Kept(version)
        figures = {"versions": float(len(self.kept))}
        return figures | {"won": fmean(points)} if points else figures

    def _find_oldest(self) -> str:
        _, *others = self.kept
        return min(others, key=lambda name: self.kept[name].version)

    def save(self, checkpoint: Path) -> None:
        """Write what `load` needs to go on bit for bit. Raises OSError where the disk does not take it."""
        folder = checkpoint / self.name
        for name in self.kept:
            self._places.save(name, self._folder(folder, name))
        (folder / FILE).write_text(json.dumps({name: asdict(kept) for name, kept in self.kept.items()}))

    def load(self, checkpoint: Path) -> None:
        """Go on from what `save` wrote. Raises RunFolderError where that is broken."""
        folder = checkpoint / self.name
        try:
            saved = json.loads((folder / FILE).read_text())
            self.kept = {name: Kept(**kept) for name, kept in saved.items()}
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(f"{folder / FILE} is damaged: {error}") from error
        for name, kept in self.kept.items():
            self._places.load(name, self._folder(folder, name), kept.version)

    def _folder(self, folder: Path, name: str) -> Path:
        """The first version is that with which another run would begin: it has the model's own folder."""
        return folder if name == self.name else folder / name.rpartition("@")[2]


def share_won(episode: Episode, name: str, trained: Collection[str]) -> float | None:
    """1 where the model `name` won against those that are trained, 0 where these did, 0.5 for neither; None where one
    of them said nothing, or nobody judged it. By the rewards of their agents, where these have any of their own; else
    they win where the episode is right."""
    own, others = ({turn.agent for turn in episode.turns if turn.model in models} for models in ({name}, trained))
    right = is_right(episode)
    if not own or not others or right is None:
        return None
    if not episode.agent_rewards:
        return float(not right)
    mine, theirs = (fmean(episode.reward_of(agent) or 0.0 for agent in agents) for agents in (own, others))
    return 0.5 if mine == theirs else float(mine > theirs)
