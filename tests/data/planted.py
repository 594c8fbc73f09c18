"""A chat API that proposes tasks, some of them faulty in known ways, and that solves and programs them.

    world = PlantedTasks(seed=0, shares={"leak": 0.1, "wrong answer": 0.1})
    with ScriptedChatServer(world, usage=True) as server: ...
    world.planted[question]     # its fault, None for a good one

It knows the answers to all it proposed. All that it draws, it draws by the content of the request.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from astune.data.prompts import ASK, NOT_IN_DOCUMENTS, PROGRAM, PROPOSE, SOLVE
from astune.task_judge.llm.fence import read_fences
from astune.types import Task

NAMES = [
    "Ada",
    "Bela",
    "Chidi",
    "Dora",
    "Emeka",
    "Farid",
    "Gita",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mira",
    "Nils",
    "Olga",
    "Pavel",
    "Quinn",
    "Rosa",
    "Sven",
    "Tara",
]
GOODS = [
    "apples",
    "pears",
    "candles",
    "notebooks",
    "lamps",
    "bolts",
    "ribbons",
    "tickets",
    "stamps",
    "marbles",
    "plates",
    "tulips",
    "bricks",
    "coins",
    "shells",
    "maps",
    "pencils",
    "buttons",
    "cushions",
    "kettles",
]
PLACES = [
    "market",
    "harbour",
    "library",
    "school",
    "station",
    "museum",
    "bakery",
    "farm",
    "workshop",
    "theatre",
    "garden",
    "office",
]

Story = Callable[[random.Random], tuple[str, int]]


def _parts(rng: random.Random) -> tuple[str, str, str, int, int, int]:
    return rng.choice(NAMES), rng.choice(GOODS), rng.choice(PLACES), *(rng.randint(3, 97) for _ in range(3))


def shop(rng: random.Random) -> tuple[str, int]:
    who, what, where, a, b, _ = _parts(rng)
    return f"At the {where} {who} buys {a} {what} for {b} coins each. How many coins does {who} pay?", a * b


def share(rng: random.Random) -> tuple[str, int]:
    who, what, where, a, b, _ = _parts(rng)
    text = f"{who} has {a * b} {what} and puts the same number into each of {a} boxes in the {where}."
    return f"{text} How many are in a box?", b


def walk(rng: random.Random) -> tuple[str, int]:
    who, _, where, a, b, c = _parts(rng)
    return (
        f"{who} walks {a} steps to the {where}, then {b} steps on, and comes back {c}. How many steps is that?",
        a + b + c,
    )


def rest(rng: random.Random) -> tuple[str, int]:
    who, what, where, a, b, c = _parts(rng)
    text = (
        f"There are {a + b + c} {what} in the {where}. {who} takes {b}, then {c} more. How many {what} are left there?"
    )
    return text, a


def save(rng: random.Random) -> tuple[str, int]:
    who, what, _, a, b, c = _parts(rng)
    return f"Every week {who} saves {a} coins. After {b} weeks {who} spends {c} on {what}. What is left?", a * b - c


def rows(rng: random.Random) -> tuple[str, int]:
    _, what, where, a, b, c = _parts(rng)
    return (
        f"The {where} keeps {what} in {a} rows of {b}, and {c} more on a table. How many {what} does it keep?",
        a * b + c,
    )


STORIES: tuple[Story, ...] = (shop, share, walk, rest, save, rows)
HELD_OUT = (
    "A train leaves with {a} passengers; at the first stop {b} get on and {c} get off. How many passengers ride on?",
    "During the storm {a} of the {b} tents near the lake were blown over. How many tents still stood in the morning?",
    "Grandmother bakes {a} trays of {b} rolls, and the children eat {c} of them at once. How many rolls remain?",
    "The choir sings {a} songs on Friday and {b} on Saturday, twice as many as planned. How many songs were planned?",
    "A painter mixes {a} litres of blue with {b} litres of white paint for a wall. How much paint is that altogether?",
    "Two rivers meet below the old bridge; one carries {a} logs an hour, the other {b}. How many pass in {c} hours?",
    "Of {a} letters that arrived on Monday the clerk answered {b} before lunch. How many did he still have to answer?",
    "The orchard has {a} trees, and each gave {b} baskets of plums this summer. How many baskets of plums were picked?",
)
FOREIGN = (
    "Auf dem Markt kauft {who} {a} Äpfel und {b} Birnen für die Schule. Wie viele Früchte sind es zusammen?",
    "Au marché {who} achète {a} pommes et {b} poires pour les enfants. Combien de fruits est-ce que cela fait?",
    "{who}在市场买了{a}个苹果和{b}个梨,一共有多少个水果?",
)
SYNONYMS = {
    "how": "so how",
    "buys": "purchases",
    "takes": "removes",
    "many": "many",
    "each": "apiece",
    "left": "remaining",
}
VAGUE = "Or so, give or take what is usual."
"""What makes a question unclear."""
FILLERS = ("Please tell me: ", "Now think about this. ", "Quick question. ")


def draw_tasks(count: int, seed: int, prefix: str = "seed") -> list[Task]:
    """Tasks of all stories."""
    rng = random.Random(f"{seed} {prefix}")
    stories = [STORIES[number % len(STORIES)](rng) for number in range(count)]
    return [Task(f"{prefix}-{n}", text, answer=str(answer)) for n, (text, answer) in enumerate(stories)]


def draw_held_out(seed: int, copies: int = 2) -> list[Task]:
    rng = random.Random(f"{seed} held out")
    tasks = []
    for n, text in enumerate(HELD_OUT * copies):
        query = text.format(a=rng.randint(20, 99), b=rng.randint(2, 19), c=rng.randint(2, 9))
        tasks.append(Task(f"held-{n}", query, answer="0", place=f"held_out.jsonl:{n + 1}"))
    return tasks


def change_words(text: str, rng: random.Random, share: float) -> str:
    """The text with a share of its words, no numbers, replaced, and a filler in front at times."""
    words = text.split()
    spots = [n for n, word in enumerate(words) if word.isalpha() and n]
    for n in rng.sample(spots, max(1, int(len(words) * share))):
        words[n] = rng.choice(("quite", "such", "those", "simply", "indeed", "roughly", "exactly"))
    return (rng.choice(FILLERS) if rng.random() < 0.5 else "") + " ".join(words)


def change_numbers(text: str, rng: random.Random) -> str:
    """The text with other numbers."""
    return re.sub(r"\d+", lambda _: str(rng.randint(3, 97)), text)


def change_signs(text: str, rng: random.Random) -> str:
    """The text with other capitals, spaces and punctuation."""
    return rng.choice((text.upper(), text.replace(" ", "  ").rstrip("?."), text.lower().replace(",", " -")))


def hide(text: str, rng: random.Random) -> str:
    """A held-out question changed in one of the ways in which leaks come."""
    way = rng.randrange(4)
    if way == 0:
        return change_signs(text, rng)
    if way == 1:
        return change_words(text, rng, 0.15)
    if way == 2:
        return ". ".join(reversed(text.rstrip("?").split(". "))) + "?"
    return f"{shop(rng)[0].split('.')[0]}. {text}"


class PlantedTasks:
    """The API. `shares` are those of each fault among what it proposes, `noise` that of wrong solutions and programs,
    `broken` that of programs that fail and of replies that are junk."""

    def __init__(
        self, seed: int = 0, shares: Mapping[str, float] | None = None, noise: float = 0.0, broken: float = 0.0
    ) -> None:
        self.seeds = draw_tasks(10, seed)
        self.held_out = draw_held_out(seed)
        self.planted: dict[str, str | None] = {}
        self.truth: dict[str, str] = {}
        self.calls: dict[str, int] = {}
        self._shares = dict(shares or {})
        self._noise, self._broken = noise, broken
        self.port = 0
        """The port of its last server, so that the next has the same address."""

    def __call__(self, body: Mapping[str, Any]) -> str | int:
        if len(body["messages"]) == 1:  # it is the model of an agent
            rng = random.Random(f"{len(self.calls)}{self.calls}{body['messages']}")
            self.calls["play"] = self.calls.get("play", 0) + 1
            return self.solve(body["messages"][0]["content"], [], rng)
        system, user = (message["content"] for message in body["messages"][:2])
        if (task := dict(read_fences(user)).get("task")) is not None:  # it judges by a rubric
            score = {"id": "clear", "reason": "...", "score": int(VAGUE not in task)}
            return json.dumps({"criteria": [score]})
        job = system.split("\n", 1)[0]
        self.calls[job] = self.calls.get(job, 0) + 1
        fences = read_fences(user)
        rng = random.Random(json.dumps(body["messages"]) + str(self.calls[job]) * (job == SOLVE))
        if rng.random() < self._broken:
            return "No JSON today."
        question = next((text for name, text in fences if name == "question"), "")
        if job == SOLVE:
            return json.dumps({"reasoning": "...", "answer": self.solve(question, fences, rng)})
        if job == PROGRAM:
            return json.dumps({"program": self.program(question, rng)})
        assert job in (PROPOSE, ASK), job
        return json.dumps({"tasks": [self.propose(fences, rng, user) for _ in range(4)]})

    def solve(self, question: str, fences: list[tuple[str, str]], rng: random.Random) -> str:
        truth = self.truth.get(question, NOT_IN_DOCUMENTS)
        return str(rng.randint(1000, 9999)) if rng.random() < self._noise else truth

    def program(self, question: str, rng: random.Random) -> str:
        if rng.random() < self._broken:
            return "raise SystemExit(1)"
        truth = self.truth.get(question, "")
        wrong = rng.random() < self._noise
        return f"x = {truth or 0}\nprint(x + {int(wrong)})" if truth.lstrip("-").isdigit() else "print()"

    def propose(self, fences: list[tuple[str, str]], rng: random.Random, user: str) -> dict[str, Any]:
        at, fault = rng.random(), None
        for name, share in self._shares.items():
            if at < share:
                fault = name
                break
            at -= share
        text, answer = self.plant(fault, rng)
        proposal = {"question": text, "answer": str(answer + rng.randint(1, 9) * (fault == "wrong answer"))}
        if fault == "format":
            proposal["answer"] = rng.choice(("a great many", "Ada, who has most of them", "yes"))
        self.planted.setdefault(text, fault)
        self.truth.setdefault(text, str(answer))
        return proposal

    def plant(self, fault: str | None, rng: random.Random) -> tuple[str, int]:
        """A question with this fault, and the right answer to it."""
        text, answer = rng.choice(STORIES)(rng)
        original = rng.choice(self.seeds)
        if fault == "copy":
            return change_signs(original.query, rng), int(original.answer or "")
        if fault == "near copy":
            return change_words(original.query, rng, 0.1), int(original.answer or "")
        if fault == "leak":
            return hide(rng.choice(self.held_out).query, rng), answer
        if fault == "language":
            who, a, b = rng.choice(NAMES), rng.randint(2, 99), rng.randint(2, 99)
            return rng.choice(FOREIGN).format(who=who, a=a, b=b), a + b
        if fault == "length":
            return rng.choice((f"{rng.randint(2, 99)} more?", " ".join(story(rng)[0] for story in STORIES))), answer
        if fault == "quality":
            return f"{text} {VAGUE}", answer
        if fault == "empty":
            return text.replace(text.split()[2], "{name}"), answer
        return text, answer
