"""`astune eval --league`, as a function: versions of two models against each other, and ratings of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astune.api.evaluate import Playing, open_evaluation
from astune.config.load import LoadedConfig
from astune.errors import ConfigError
from astune.monitor.summary import show_figure
from astune.selection.league import League, play_league, sides_of
from astune.selection.rows import Rows
from astune.selection.select import candidates_of, engine_for
from astune.support.terminal import Console, ShowsItself, make_table
from astune.viewer.models_page import write_league_page


class PlayedLeague(ShowsItself):
    """The outcome. `report` is a page of its tables. A notebook shows them."""

    def __init__(self, league: League) -> None:
        self.league = league
        self.report = write_league_page(league.folders[0].parent, league.sides, league_rows(league))

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        league = self.league
        won = [
            {league.sides[0]: one, league.sides[1]: other, "won": None if share is None else share._asdict()}
            for (one, other), share in league.won.items()
        ]
        ratings = [rating._asdict() for rating in league.ratings]
        return {"evaluation": league.evaluation, "won": won, "ratings": ratings, "report": str(self.report)}

    def print(self, console: Console) -> None:
        for title, columns, rows in league_rows(self.league):
            table = make_table(*columns, left=(columns[0], "95 % interval"), gap=2, title=title)
            for row in rows:
                table.add_row(*row)
            console.print(table)


def league_rows(league: League) -> list[Rows]:
    """Make the rows of who won how often against whom, and of the ratings."""
    one, other = league.sides
    won: list[tuple[str, ...]] = []
    for name in league.names:
        shares = [league.won[name, against] for against in league.names]
        cells = ["-" if share is None else show_figure("success", share.mean) for share in shares]
        won.append((f"{one} {name}", *cells))
    rated: list[tuple[str, ...]] = [
        (each.player, f"{each.rating:+.0f}", f"{each.interval[0]:+.0f} to {each.interval[1]:+.0f}")
        for each in league.ratings
    ]
    return [
        (f"{league.evaluation}: how often {one} won against {other} of", ("", *league.names), won),
        ("ratings: 400 points more win ten times as often", ("version", "rating", "95 % interval"), rated),
    ]


def league_loaded(loaded: LoadedConfig, models: Sequence[str], playing: Playing) -> PlayedLeague:
    """Play the first held-out set of a configuration with each pair of versions of its two models."""
    if len(models) < 2:
        raise ConfigError(f"--league: expected two or more checkpoints, got {len(models)}")
    sides_of(loaded.config.astune)
    candidates = candidates_of(models, loaded.config.astune, "--league")
    with open_evaluation(loaded, playing) as (ready, evaluations):
        load_engine, _ = engine_for(loaded, candidates, playing.backbone, playing.engine)
        return PlayedLeague(play_league(loaded, ready, evaluations[0], candidates, load_engine, playing.out))
