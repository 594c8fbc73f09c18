"""A folder of documents, and a chat API that asks about them, with faults in known shares.

    world = PlantedDocuments(seed=0, shares={"evidence": 0.2, "known": 0.1})
    world.write(folder)

The documents state weights and heights of machines that nobody knows, and a few things that all know.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astune.data.prompts import ASK, ASK_FOR, NOT_IN_DOCUMENTS, PROGRAM, SOLVE
from astune.task_judge.llm.fence import read_fences

SYLLABLES = [
    "Bra",
    "Cor",
    "Dun",
    "Fel",
    "Gri",
    "Hal",
    "Jor",
    "Kem",
    "Lun",
    "Mor",
    "Nev",
    "Oss",
    "Pra",
    "Quo",
    "Ros",
    "Tal",
    "Ulm",
    "Vek",
    "Wyn",
    "Zar",
]
COMMON = {
    "What is the capital of France?": ("Paris", "The capital of France is Paris."),
    "How many days has a leap year?": ("366", "A leap year has 366 days."),
}
"""What a model knows without the document, though it stands there."""
FACT = re.compile(r"The (\w+ \d+) weighs (\d+) kg and is (\d+) cm high\.")


class PlantedDocuments:
    """The API. It reads facts off the passages that it is shown, as a model would."""

    def __init__(self, seed: int = 0, shares: Mapping[str, float] | None = None, documents: int = 5) -> None:
        rng = random.Random(seed)
        self.facts: dict[str, tuple[int, int]] = {}
        self.texts: dict[str, str] = {}
        self._planted: dict[str, str | None] = {}
        self._shares = dict(shares or {})
        for number in range(documents):
            lines = []
            for _ in range(6):
                name = f"{rng.choice(SYLLABLES)}{rng.choice(SYLLABLES).lower()} {rng.randint(100, 999)}"
                self.facts[name] = rng.randint(10, 99), rng.randint(100, 300)
                lines.append("The {} weighs {} kg and is {} cm high.".format(name, *self.facts[name]))
                lines.extend(sentence for _, sentence in COMMON.values())  # in each passage
            self.texts[f"machines_{number}.md"] = f"# Machines {number}\n\n" + "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir()
        for name, text in self.texts.items():
            (folder / name).write_text(text)

    def fault_of(self, row: Mapping[str, Any]) -> str | None:
        """The planted fault of a row that was kept or dropped."""
        answer = row["answer"] * (row["lineage"]["kind"] != "absent")
        return self._planted[json.dumps([row["query"], row["lineage"]["evidence"]]) + answer]

    def __call__(self, body: Mapping[str, Any]) -> str:
        system, user = (message["content"] for message in body["messages"][:2])
        job, fences = system.split("\n", 1)[0], read_fences(user)
        texts = [text for name, text in fences if name == "document"]
        question = next((text for name, text in fences if name == "question"), "")
        if job == SOLVE:
            return json.dumps({"answer": self.solve(question, texts)})
        if job == PROGRAM:
            return json.dumps({"program": self.program(question, texts)})
        assert job == ASK
        kind = next(name for name, words in ASK_FOR.items() if words in system)
        rng = random.Random(json.dumps(body["messages"]))
        return json.dumps({"tasks": [self.propose(kind, texts, rng) for _ in range(4)]})

    def solve(self, question: str, texts: list[str]) -> str:
        """What a reader of these texts says."""
        if question in COMMON:
            return COMMON[question][0]
        there = {name: (int(kg), int(cm)) for text in texts for name, kg, cm in FACT.findall(text)}
        named = [name for name in there if name in question]
        if "weigh together" in question and len(named) == 2:
            return str(sum(there[name][0] for name in named))
        if "the heavier" in question and len(named) == 2:
            return max(named, key=lambda name: there[name][0])
        if question.startswith("How high") and named:
            return str(there[named[0]][1])
        return NOT_IN_DOCUMENTS

    def program(self, question: str, texts: list[str]) -> str:
        answer = self.solve(question, texts)
        return f"print({answer} + 0)" if answer.isdigit() else "print()"

    def propose(self, kind: str, texts: list[str], rng: random.Random) -> dict[str, Any]:
        at, fault = rng.random(), None
        for name, share in self._shares.items():
            if at < share:
                fault = name
                break
            at -= share
        found = [FACT.findall(text) for text in texts]
        question, answer, evidence = self._good(kind, found, rng)
        if fault == "found" and kind == "absent":
            question = f"How high is the {rng.choice(found[0])[0]}?"
        elif fault == "known" and kind == "fact":
            question = rng.choice([*COMMON])
            answer, sentence = COMMON[question]
            evidence = [sentence]
        elif fault == "evidence" and kind != "absent":
            evidence = [rng.choice((evidence[0].replace("weighs", "is said to weigh"), "The makers say so.", ""))]
        elif fault == "wrong answer" and kind in ("two", "computed"):
            answer = str(int(answer) + 1) if answer.isdigit() else next(n for n in self.facts if n not in question)
        elif fault == "unanswerable" and kind == "fact":
            question = f"Who bought the first {rng.choice(found[0])[0]}?"
        else:
            fault = None
        self._planted.setdefault(json.dumps([question, evidence]) + answer * (kind != "absent"), fault)
        return {"question": question, "answer": answer, "evidence": evidence}

    def _good(self, kind: str, found: list[list[Any]], rng: random.Random) -> tuple[str, str, list[str]]:
        first, *more = [rng.choice(each) for each in found]
        sentences = ["The {} weighs {} kg and is {} cm high.".format(*each) for each in (first, *more)]
        if kind == "fact":
            return f"How high is the {first[0]} in cm?", first[2], sentences
        if kind == "absent":
            return f"In which year was the {first[0]} built?", "1950", []
        if kind == "computed":
            total = int(first[1]) + int(more[0][1])
            return f"How many kg do the {first[0]} and the {more[0][0]} weigh together?", str(total), sentences
        heavier = max(first, more[0], key=lambda each: int(each[1]))[0]
        return f"Which is the heavier, the {first[0]} or the {more[0][0]}?", heavier, sentences
