"""How often the wolves win: python tutorial/werewolves/win_rates.py

With `--learn` tiny wolves are trained for 1,000 games, and the table is that of their wins after 0, 100, 500 and 1,000.
What follows are settings: --learn astune.seed=2
"""

import asyncio
import sys
from fractions import Fraction
from pathlib import Path

from rules import SKILLS, TABLES, Game, Settings
from scripted import Scripted

from astune.cli import main as astune
from astune.judging.agreement import wilson

WOLVES = str(Path(__file__).with_name("wolves.yaml"))
RUN = "runs/werewolves/table"
GAMES = 500


def chance(wolves: int, others: int) -> Fraction:
    """How often wolves win where nobody knows anything and there are no other roles: each night one of the others dies,
    each day anybody, with equal chances.

    >>> chance(2, 4)
    Fraction(13, 15)
    """
    others -= 1
    if wolves >= others:
        return Fraction(1)
    everybody = wolves + others
    wolf_out = Fraction(0) if wolves == 1 else chance(wolves - 1, others)
    other_out = Fraction(1) if wolves >= others - 1 else chance(wolves, others - 1)
    return Fraction(wolves, everybody) * wolf_out + Fraction(others, everybody) * other_out


def count_wins(settings: Settings, wolves: str, village: str, games: int = GAMES) -> int:
    """The games that scripted wolves win against a scripted village."""
    return [play(settings, seed, wolves, village).winner for seed in range(games)].count("wolves")


def play(settings: Settings, seed: int, wolves: str, village: str) -> Game:
    game = Game(settings, seed)
    players = {seat: Scripted(wolves if role == "wolf" else village, seat, seed) for seat, role in game.roles.items()}
    asyncio.run(game.play(lambda question: players[question.view.seat].answer(question)))
    return game


def show_scripted() -> None:
    for players, table in TABLES.items():
        print(
            f"\n{players} players: wins of wolves that are ...\n{'village':8}"
            + "".join(f"{each:>24}" for each in SKILLS)
        )
        for village in SKILLS:
            wins = [count_wins(Settings(**table), wolves, village) for wolves in SKILLS]
            cells = [(won / GAMES, *wilson(won, GAMES)) for won in wins]
            print(
                f"{village:8}"
                + "".join(f"{rate:9.1%} ({low:.0%} to {high:.0%})".rjust(24) for rate, low, high in cells)
            )


def learn(*changes: str) -> int:
    """Train for 50 steps of 20 games, and play the checkpoints on the same held-out games. `changes` are settings, as
    on the command line."""
    keys = ("total_steps=50", "tasks_per_step=2", "save_every=5", "keep_checkpoints=10", "lr_schedule=constant")
    run = [f"astune.trainer.{key}" for key in keys] + ["astune.experiment_name=table", "astune.evaluation.before=false"]
    run += ["astune.evaluation.after=false", "astune.evaluation.every=0"]
    if code := astune(["--conf", WOLVES, *run, *changes]):
        return code
    checkpoints = ["none", f"{RUN}@5", f"{RUN}@25", f"{RUN}@50"]
    return astune(["eval", "--conf", WOLVES, "--checkpoint", *checkpoints, "--figures", "reward", *changes])


if __name__ == "__main__":
    sys.exit(learn(*sys.argv[2:]) if sys.argv[1:2] == ["--learn"] else show_scripted())
