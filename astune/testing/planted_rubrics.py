"""A world in which the right rubric is known, and a chat API that plays the language model there.

    world = PlantedWorld(seed=0, n_examples=60, kind="scored")
    world.write_examples(Path("examples.jsonl"))
    with world.server() as server:                  # give server.base_url to astune.task_judge.llm.models
        ...
    world.finds(rubric)                             # which of world.planted it contains

People prefer the answers of a support agent that have the planted features, three or four of 17, and err at a rate
of `noise`. The API does not know which are planted. It sees what answers do (`planted_features`), proposes criteria by
that among others that mean nothing, and judges by a criterion as it is worded, wrongly at a rate of `judge_noise`. All
that it draws, it draws by the content of the request: the order of requests and how many run at once change nothing.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from astune.errors import nearest
from astune.rubrics.prompts import ARRANGE, HOLISTIC, HOLISTIC_MAX, PROPOSE, REVISE
from astune.task_judge.llm.fence import read_fences
from astune.task_judge.llm.pointwise import JUDGE
from astune.task_judge.llm.rubric import Rubric
from astune.testing.chat_server import Script, ScriptedChatServer
from astune.testing.planted_features import (
    FEATURES,
    VAGUE,
    CustomerMessage,
    Feature,
    draw_answer,
    draw_message,
    features_of,
    meaning,
)

Kind = Literal["scored", "paired", "ranked"]
Fences = Sequence[tuple[str, str]]

RANKED = 3
"""Answers of a ranked example."""

TRUE_SHARE = 0.7
"""The number of proposed criteria that do tell the answers apart."""


@dataclass(frozen=True)
class Faults:
    """Shares of the API's replies that go wrong, by kind, and the seconds that each reply takes."""

    failing: float = 0.0
    """HTTP error 500."""
    malformed: float = 0.0
    """JSON that breaks off."""
    missing: float = 0.0
    """A criterion without a score."""
    repeated: float = 0.0
    """A criterion that is scored, or proposed, twice."""
    latency: float = 0.0


class NoWatch:
    """A `Watch` for learning without a display."""

    def stage(self, name: str, total: int) -> None:
        pass

    def advance(self) -> None:
        pass

    def report_failure(self, why: str) -> None:
        pass


class PlantedModel:
    """The answers of the API, and the number of requests: `calls` by the first line of the system message, failed ones
    among them."""

    def __init__(self, *, hint: str, judge_noise: float = 0.0, faults: Faults = Faults()) -> None:
        self.calls: Counter[str] = Counter()
        self._hint = hint
        self._judge_noise = judge_noise
        self._faults = faults
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, body: Mapping[str, Any]) -> Script:
        system, user = (message["content"] for message in body["messages"][:2])
        job = system.split("\n", 1)[0].strip()
        content = json.dumps(body["messages"])
        with self._lock:
            self.calls[job] += 1
            self._seen[content] += 1
            fate = random.Random(f"{self._seen[content]} {content}")  # so that a second attempt may succeed
        if self._faults.latency:
            time.sleep(self._faults.latency)
        if fate.random() < self._faults.failing:
            return 500
        reply = json.dumps(self._reply(job, system, read_fences(user), random.Random(content), fate))
        return reply[: len(reply) // 2] if fate.random() < self._faults.malformed else reply

    def _reply(self, job: str, system: str, fences: Fences, rng: random.Random, fate: random.Random) -> Any:
        if job in (PROPOSE, REVISE):
            return {"criteria": self._propose(_most(system), fences, rng, fate)}
        if job == JUDGE:
            return {"criteria": self._scores(fences, fate)}
        if job == HOLISTIC:
            answer = _text(fences, "answer")
            luck = random.Random(answer).uniform(-2.5, 2.5)
            score = len(answer.split()) / 15 + 2.0 * (self._hint in features_of(answer)) + luck
            return {"reason": "by its length", "score": max(0, min(HOLISTIC_MAX, round(score)))}
        if job == ARRANGE:
            return _arrange(fences, scaled="anchors" in system)
        raise ValueError(f"the planted model was asked for what it does not know: {job!r}")

    def _propose(self, most: int, fences: Fences, rng: random.Random, fate: random.Random) -> list[dict[str, str]]:
        """Criteria that more of the better answers than of the worse meet, and criteria that do not matter, none of
        them in play already."""
        known = meanings(_second_line(text) for name, text in fences if name == "criterion")
        better, worse = _better_and_worse(fences)
        gaps = {one: _share(one, better) - _share(one, worse) for one in FEATURES if one.name not in known}
        telling = [feature for feature, gap in gaps.items() if gap > 0]
        telling.sort(key=lambda feature: gaps[feature] + rng.random(), reverse=True)
        idle = [rng.choice(feature.wordings) for feature, gap in gaps.items() if gap <= 0] + [*VAGUE]
        rng.shuffle(idle)
        texts = []
        for _ in range(most):
            if telling and rng.random() < TRUE_SHARE:
                texts.append(rng.choice(telling.pop(0).wordings))
            else:
                texts.append(idle.pop())
        if texts and fate.random() < self._faults.repeated:
            texts.append(texts[0])
        return [{"text": text, "reason": "It tells them apart."} for text in texts]

    def _scores(self, fences: Fences, fate: random.Random) -> list[dict[str, Any]]:
        answer = _text(fences, "answer")
        scores = []
        for line in _text(fences, "criteria").splitlines():
            name, scale, text = line.split(" | ")[:3]
            low, high = (int(limit) for limit in scale.split("-"))
            # a criterion that means nothing is met by half of all answers, whatever they say
            drawn, feature = random.Random(f"{text}\n{answer}").random(), meaning(text)
            met = drawn < 0.5 if feature is None else feature.met(answer) != (drawn < self._judge_noise)
            scores.append({"id": name, "reason": "It does." if met else "It does not.", "score": high if met else low})
        if fate.random() < self._faults.missing:
            scores.pop()
        if scores and fate.random() < self._faults.repeated:
            scores.append(scores[0])
        return scores


def _better_and_worse(fences: Fences) -> tuple[list[str], list[str]]:
    """An answer shown alone is better if the mistake that is told of it says that people found it good."""
    found_good = any("people found it good" in text for name, text in fences if name == "mistake")
    roles = ("better", "answer") if found_good else ("better",), ("worse",) if found_good else ("worse", "answer")
    better, worse = ([text for name, text in fences if name in wanted] for wanted in roles)
    return better, worse


def _share(feature: Feature, answers: Sequence[str]) -> float:
    """The share of answers that have it; one half if there are none."""
    return sum(map(feature.met, answers)) / len(answers) if answers else 0.5


def _arrange(fences: Fences, *, scaled: bool) -> dict[str, Any]:
    themes: dict[str, list[str]] = {}
    for _, text in fences:
        feature = meaning(_second_line(text))
        themes.setdefault(feature.theme if feature else "Overall", []).append(text.split("\n", 1)[0])
    ids = [name for names in themes.values() for name in names]
    anchors = {"anchors": {name: {"0": "not at all", "4": "fully"} for name in ids}} if scaled else {}
    return {"themes": [{"theme": theme, "criteria": names} for theme, names in themes.items()], **anchors}


def _text(fences: Fences, wanted: str) -> str:
    return next(text for name, text in fences if name == wanted)


def _second_line(criterion: str) -> str:
    return criterion.split("\n", 1)[1]


def _most(system: str) -> int:
    """The number of criteria that a prompt asks for."""
    asked = re.search(r"up to (\d+) criteria", system)
    return int(asked.group(1)) if asked else 1


class PlantedWorld:
    """Examples whose labels a known rubric made.

    `planted` are names of features, by default three or four drawn by `seed`, each counting the same; how long an
    answer is, is never among them. An answer is good if it meets more than half of them. With `noise`, that share of
    the labels is the other way round: of scored examples and pairs each, of ranks each two neighbours. With
    `shuffled_labels` labels say nothing of answers.
    """

    def __init__(
        self,
        seed: int,
        n_examples: int = 60,
        kind: Kind = "scored",
        *,
        noise: float = 0.05,
        judge_noise: float = 0.05,
        shuffled_labels: bool = False,
        planted: Sequence[str] = (),
        faults: Faults = Faults(),
    ) -> None:
        rng = random.Random(f"planted {seed}")
        names = [feature.name for feature in FEATURES if feature.sentences]
        for name in planted:
            if name not in names:
                raise ValueError(f"no feature {name!r} to plant.{nearest(name, names)}")
        self.planted = frozenset(planted or rng.sample(names, rng.choice((3, 4))))
        self.kind = kind
        self._noise = 0.5 if shuffled_labels else noise
        self._judge_noise = judge_noise
        self._faults = faults
        make = {"scored": self._score, "paired": self._pair, "ranked": self._rank}[kind]
        self.examples: list[dict[str, Any]] = [{"id": f"example-{n:03d}", **make(n, rng)} for n in range(n_examples)]

    def true_label(self, answer: str) -> float:
        """Share of the planted features that an answer has."""
        return len(self.planted & features_of(answer)) / len(self.planted)

    def write_examples(self, path: Path) -> None:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.examples), encoding="utf-8")

    def model(self) -> PlantedModel:
        """The API without HTTP: a function of the body of a request."""
        return PlantedModel(hint=min(self.planted), judge_noise=self._judge_noise, faults=self._faults)

    @contextmanager
    def server(self, port: int = 0) -> Iterator[PlantedServer]:
        model = self.model()
        with ScriptedChatServer(model, models=["planted"], usage=True, port=port) as server:
            yield PlantedServer(server.base_url, model.calls)

    def finds(self, rubric: Rubric) -> frozenset[str]:
        """The planted features that criteria of `rubric` with a weight mean."""
        return self.planted & meanings(one.text for one in rubric.criteria if one.weight > 0)

    def _score(self, n: int, rng: random.Random) -> dict[str, Any]:
        """Good and bad answers by turns, so that the majority is no help."""
        message = draw_message(rng)
        answer = next(a for a in _answers(message, rng) if (self.true_label(a) > 0.5) == (n % 2 == 0))
        good = (n % 2 == 0) != (rng.random() < self._noise)
        return {"query": message.query, "answer": answer, "score": int(good)}

    def _pair(self, n: int, rng: random.Random) -> dict[str, Any]:
        row = self._order(2, rng)
        return {"query": row["query"], "chosen": row["answers"][0], "rejected": row["answers"][1]}

    def _rank(self, n: int, rng: random.Random) -> dict[str, Any]:
        return self._order(RANKED, rng)

    def _order(self, count: int, rng: random.Random) -> dict[str, Any]:
        """Answers of different worth, the best first, but for labels that are the other way round."""
        message = draw_message(rng)
        answers: dict[float, str] = {}
        for answer in _answers(message, rng):
            answers.setdefault(self.true_label(answer), answer)
            if len(answers) == count:
                break
        ordered = [answers[worth] for worth in sorted(answers, reverse=True)]
        if count > 2 and self._noise == 0.5:
            rng.shuffle(ordered)
        for at in range(count - 1):
            if rng.random() < self._noise:
                ordered[at], ordered[at + 1] = ordered[at + 1], ordered[at]
        return {"query": message.query, "answers": ordered}


@dataclass(frozen=True)
class PlantedServer:
    base_url: str
    calls: Counter[str]
    """Requests by the first line of their system message."""


def meanings(criteria: Iterable[str]) -> frozenset[str]:
    """Names of the features that texts mean."""
    return frozenset(feature.name for text in criteria if (feature := meaning(text)))


def _answers(message: CustomerMessage, rng: random.Random) -> Iterator[str]:
    while True:
        yield draw_answer(message, rng)
