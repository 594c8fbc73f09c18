"""Versions of two models that oppose each other: each of one against each of the other, and what they are worth.

    wolf of step 0   ─┬─ villager of step 0
    wolf of step 50  ─┼─ villager of step 50        each pair plays the same held-out tasks
    wolf of step 100 ─┴─ villager of step 100

A rating is of Bradley and Terry's model, on the scale of Elo: who has 400 points more wins ten times as often. Each
player has drawn once with one of rating 0, so that nobody's is infinite. Intervals are bootstrapped over the tasks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

from astune.config.load import LoadedConfig
from astune.config.model import NamedModelConfig
from astune.config.rules.models import begin_with
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import adapter_dir, list_adapters
from astune.errors import ConfigError
from astune.monitor.episodes import episodes_path
from astune.monitor.run_dir import RunDir
from astune.rollout.past_versions import share_won
from astune.support.statistics import CONFIDENCE, MeanOverTasks, estimate
from astune.training.candidates import Candidate
from astune.training.engine import Engine, LoadEngine, close_nothing
from astune.training.held_out import Evaluation
from astune.training.standalone import Played, play, read_attempts

Shares: TypeAlias = Mapping[tuple[str, str], Mapping[str, float]]
"""By pair and task, the share of the attempts that the first of the pair won; draws count half."""
RESAMPLES = 200
ROUNDS = 60
"""Rounds of Hunter's minorisation (2004), enough for a thousandth of a point."""


class Rating(NamedTuple):
    """The rating of a player, with its 95 % interval."""

    player: str
    rating: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class League:
    """What came of it. `sides` are the models; `won` is how often the first won, by the names of both versions, None
    where no attempt could be judged."""

    evaluation: str
    sides: tuple[str, str]
    names: Sequence[str]
    won: Mapping[tuple[str, str], MeanOverTasks | None]
    ratings: Sequence[Rating]
    folders: Sequence[Path]


def sides_of(config: AstuneConfig) -> tuple[str, str]:
    """The two models that learn. Raises ConfigError where there are not two."""
    learning = [name for name, model in config.models.items() if model.learns]
    if len(learning) != 2:
        raise ConfigError(
            f"--league: it plays versions of two models that learn against each other, and astune.models has "
            f"{len(learning)}: {', '.join(learning) or 'none'}"
        )
    return learning[0], learning[1]


def play_league(
    loaded: LoadedConfig,
    ready: AstuneConfig,
    evaluation: Evaluation,
    candidates: Sequence[Candidate],
    load_engine: LoadEngine,
    out: Path | None,
) -> League:
    """Play the evaluation with each pair. What was played before is not played again. Raises ConfigError for what has
    no versions of both."""
    one, other = sides_of(ready)
    found: dict[tuple[str, str], Played] = {}
    versions = {
        f"{side}@{number}": begin(ready, each, side).models[side]
        for side in (one, other)
        for number, each in enumerate(candidates)
    }
    with ExitStack() as stack:
        load = share_engine(ready, versions, load_engine, stack)
        for (i, first), (j, second) in product(enumerate(candidates), enumerate(candidates)):
            drawn = {one: f"{one}@{i}", other: f"{other}@{j}"}
            both = {"models": ready.models | {side: versions[place] for side, place in drawn.items()}}
            drawn |= {name: drawn[model.past_of] for name, model in ready.models.items() if model.past_of in drawn}
            pair = Candidate(f"{first.name}-against-{second.name}", mark=f"{first.mark} {second.mark}")
            config = loaded.config.model_copy(update={"astune": loaded.config.astune.model_copy(update=both)})
            folder = None if out is None else out / f"{first.step}-{second.step}"
            found[first.name, second.name] = play(
                config, ready.model_copy(update=both), pair, [evaluation], load, folder, drawn=drawn
            )
    shares = {pair: share_by_task(played, evaluation.name, one, other) for pair, played in found.items()}
    by_player = {(f"{one} {a}", f"{other} {b}"): tasks for (a, b), tasks in shares.items()}
    return League(
        evaluation.name,
        (one, other),
        [each.name for each in candidates],
        {pair: estimate([*tasks.values()], share=True) if tasks else None for pair, tasks in shares.items()},
        rate(by_player),
        [played.folder for played in found.values()],
    )


def share_engine(
    ready: AstuneConfig, versions: Mapping[str, NamedModelConfig], load_engine: LoadEngine, stack: ExitStack
) -> LoadEngine:
    """Load one engine for all pairs, when the first of them asks for it: each version of each side is a frozen model in
    it. `stack` closes it."""
    frozen = {name: model.model_copy(update={"frozen": True}) for name, model in versions.items()}

    @cache
    def load() -> Engine:
        return stack.enter_context(closing(load_engine(ready.model_copy(update={"models": ready.models | frozen}))))

    return lambda config: replace(load(), close=close_nothing)


def begin(config: AstuneConfig, candidate: Candidate, side: str) -> AstuneConfig:
    """The configuration with the models of a checkpoint, or as it is for the model before training."""
    if candidate.checkpoint is None and candidate.name == "base":
        return config
    folder = Path(candidate.checkpoint or candidate.model or "")
    if adapter_dir(str(folder / side)) is None:
        held = ", ".join(list_adapters(folder)) or "none"
        raise ConfigError(
            f"--league: {candidate.name} has no model {side!r}; expected checkpoints of a run with it. It has: {held}"
        )
    return begin_with(config, folder)


def share_by_task(played: Played, evaluation: str, one: str, other: str) -> dict[str, float]:
    """By task, the share of the judged attempts that `one` won. By the agents' own rewards, else by the verdict, which
    is that of `one`."""
    path = episodes_path(RunDir(played.folder).episodes_dir, f"eval/{evaluation}")
    found = {}
    for task, episodes in read_attempts(path, turns=True).items():
        lost = [share_won(episode, other, [one]) for episode in episodes]
        if judged := [1.0 - share for share in lost if share is not None]:
            found[task] = fmean(judged)
    return found


def rate(shares: Shares) -> list[Rating]:
    """Rate the players of all pairs, the best first.

    >>> [player, _] = rate({("wolf", "dog"): {"a": 1.0, "b": 1.0, "c": 0.0}})
    >>> player.player, round(player.rating), player.interval[0] < 0 < player.interval[1]
    ('wolf', 51, True)
    """
    tasks = sorted({task for each in shares.values() for task in each})
    players = sorted({player for pair in shares for player in pair})
    rated = _strengths(shares, players, tasks)
    draw, drawn = random.Random(len(tasks)), []
    for _ in range(RESAMPLES):
        drawn.append(_strengths(shares, players, draw.choices(tasks, k=len(tasks))) if tasks else rated)
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    found = []
    for player in players:
        values = sorted(each[player] for each in drawn)
        found.append(Rating(player, rated[player], (values[tail], values[-1 - tail])))
    return sorted(found, key=lambda each: -each.rating)


def _strengths(shares: Shares, players: Sequence[str], tasks: Sequence[str]) -> dict[str, float]:
    """The ratings that are most likely. A task counts as one game."""
    won, met = dict.fromkeys(players, 0.5), dict[tuple[str, str], int]()
    for (one, other), by_task in shares.items():
        played = [by_task[task] for task in tasks if task in by_task]
        won[one] += math.fsum(played)
        won[other] += len(played) - math.fsum(played)
        met[one, other] = met[other, one] = len(played)
    against = {player: [(b, n) for (a, b), n in met.items() if a == player] for player in players}
    strength = dict.fromkeys(players, 1.0)
    for _ in range(ROUNDS):
        for player in players:
            mine = strength[player]
            weight = 1.0 / (mine + 1.0) + math.fsum(n / (mine + strength[b]) for b, n in against[player])
            strength[player] = won[player] / weight
    return {player: 400.0 * math.log10(value) for player, value in strength.items()}
