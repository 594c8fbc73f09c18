"""Writes examples.jsonl, from which the tiny model learns to play at all: python tutorial/werewolves/make_examples.py

In 800 games everybody names anybody, and one time in ten nobody. After most questions comes an exercise in reading:
in place of what is asked stands a word, and the answer is a seat behind that word.
"""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

from prompts import SYSTEM, ask_short, describe
from rules import Answer, Game, Question, Settings
from scripted import most_blamed

SEEDS = range(20_000, 20_800)


def play(seed: int) -> list[tuple[str, int]]:
    """What is asked in one game, and exercises, each with an answer."""
    draw = random.Random(seed)
    examples = []

    async def ask(question: Question) -> Answer:
        name = draw.choice(question.legal)
        examples.extend([(ask_short(question, 0), name), *exercise(question, draw)])
        return Answer(name if draw.random() < 0.9 else 0)

    asyncio.run(Game(Settings(), seed).play(ask))
    return examples


def exercise(question: Question, draw: random.Random) -> list[tuple[str, int]]:
    most = most_blamed(question.view, question.legal)
    words = {seat: describe(question.view, seat, most) for seat in question.legal}
    told = sorted({word for said in words.values() for word in said} - {"other"})
    word = draw.choice(told) if told else ""
    seats = [seat for seat in words if word in words[seat]]
    asked = replace(question, act=f" {word}")  # with the space that makes it the same token as in the list
    return [(ask_short(asked, 0), draw.choice(seats))] if seats else []


def main() -> None:
    with Path(__file__).with_name("examples.jsonl").open("w", encoding="utf-8") as file:
        for seed in SEEDS:
            for text, name in play(seed):
                said = {"system": SYSTEM, "user": text, "assistant": f"The answer is {name}"}
                file.write(json.dumps({"messages": [{"role": role, "content": said[role]} for role in said]}) + "\n")


if __name__ == "__main__":
    main()
