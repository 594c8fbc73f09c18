"""The games to play, as tasks: each is a seed and the settings of `rules.Settings`."""

from collections.abc import Mapping, Sequence

from rules import TABLES, Settings

from astune.task_reader.table_reader import TableReader


class Games(TableReader):
    """Six players, of whom the wolves learn, against a village of middle skill. Held out are games of other seeds,
    against that village and against one that was never met. A subclass is another kind of game."""

    settings = Settings()
    training, held_out = range(2000), range(10_000, 10_200)
    never_met = "strong"

    def rows(self, split: str) -> Sequence[Mapping]:
        if split == "training":
            return Rows([row(seed, self.settings.opponent, self.settings) for seed in self.training])
        opponents = (self.settings.opponent, self.never_met)
        return Rows([row(seed, opponent, self.settings) for opponent in opponents for seed in self.held_out])


class Village(Games):
    """The village learns, against wolves of middle skill."""

    settings = Settings(learners="village")


class Seven(Games):
    """With seer and witch."""

    settings = Settings(**TABLES[7])


class Nine(Games):
    """With hunter as well."""

    settings = Settings(**TABLES[9])


class Rows(list):
    def place(self, index: int) -> str:
        return f"game {index + 1}"


def row(seed: int, opponent: str, settings: Settings) -> dict:
    game = f"{len(settings.roles)} players, seed {seed}, against {opponent}"
    return {
        "task_id": game,
        "query": f"A game of werewolves: {game}.",
        **vars(settings),
        "seed": seed,
        "opponent": opponent,
    }
