"""The games to play, as tasks: each is a seed and the settings of `rules.Settings`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
            return Rows([row(seed, self.settings) for seed in self.training])
        kinds = (self.settings, replace(self.settings, opponent=self.never_met))
        return Rows([row(seed, kind) for kind in kinds for seed in self.held_out])


class Shaped(Games):
    """Wolves earn more than the win, as an article has it."""

    settings = Settings(win=10, survive=5, blame=2, exposed=-5)


class Village(Games):
    """The village learns, against wolves of middle skill."""

    settings = Settings(learners="village")


class Both(Games):
    """Both sides learn. In half of the games one of them plays against an earlier version of the other. Held out are
    games of both, and of each against a scripted side of middle skill, for the win alone. In training, who helped to
    vote out one of the other side is paid for it, too: the win says too little to each of four villagers."""

    scripted = (Settings(learners="wolves"), Settings(learners="village"))
    earlier = (
        Settings(learners="wolves", opponent="policy:earlier_village"),
        Settings(learners="village", opponent="policy:earlier_wolves"),
    )
    settings = Settings(learners="both")
    blame = 1.0

    def rows(self, split: str) -> Sequence[Mapping]:
        if split == "training":
            kinds = [replace(kind, blame=self.blame) for kind in (self.settings, *self.earlier)]
            turns = (kinds[0], kinds[1], kinds[0], kinds[2])
            return Rows([row(seed, turns[seed % len(turns)]) for seed in self.training])
        return Rows([row(seed, kind) for kind in (self.settings, *self.scripted) for seed in self.held_out])


class Seven(Games):
    """With seer and witch."""

    settings = Settings(**TABLES[7])


class Nine(Games):
    """With hunter as well."""

    settings = Settings(**TABLES[9])


class Rows(list):
    def place(self, index: int) -> str:
        return f"game {index + 1}"


def row(seed: int, settings: Settings) -> dict:
    kind = "both learn" if settings.learners == "both" else f"{settings.learners} against {settings.opponent}"
    game = f"{len(settings.roles)} players, seed {seed}, {kind}"
    return {"task_id": game, "query": f"A game of werewolves: {game}.", **vars(settings), "seed": seed}
