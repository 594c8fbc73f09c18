"""A world in which it is known what a prompt must say, a model that does what it says, and a reflector of known skill.

    world = PlantedPrompts(seed=0, skill=0.7)
    with configure(solve, tasks=world.tasks, judge=judge, keys={"prompts": {"reflector": world.reflect}}) as loaded:
        found = search_prompts(loaded, world.engine(), model)
    world.finds(found.prompts["system"])                    # which of world.planted it says

Each customer needs one or two of the planted instructions followed. The model follows every instruction that its prompt
has in words that it knows, and forgets one at a rate of `noise`; with a harmful one it says next to nothing. The judge
looks at the answer alone, and says what is missing. The reflector adds one instruction: with probability `skill` one
that a judge's reason asks for, else a decoy. All is drawn by content: the order of requests changes nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astune.testing.engine import script_engine
from astune.testing.planted_features import DAYS, FEATURES, VAGUE, draw_message, meaning
from astune.types import Episode, Task, Verdict, WorkflowOutput

if TYPE_CHECKING:
    from astune.prompts.reflection import ReflectionRequest
    from astune.training.engine import LoadEngine
    from astune.workflow.tuner import Tuner

FIRST = "You answer customers of a web shop. Your answer:"
HARMFUL = ("Is one word.", "Says no more than it must.")
"""Instructions under which the model says next to nothing."""
INSTRUCTIONS = {feature.name: feature for feature in FEATURES if feature.sentences and not feature.by_absence}
MISSING = "The answer lacks this: "


async def solve(task: Task, tuner: Tuner) -> WorkflowOutput:
    """The workflow."""
    messages: list[Any] = [
        {"role": "system", "content": tuner.prompt("system", default=FIRST)},
        {"role": "user", "content": task.query},
    ]
    reply = await tuner.openai_client().chat.completions.create(model="planted", messages=messages)
    return WorkflowOutput(answer=reply.choices[0].message.content)


async def judge(task: Task, episode: Episode) -> Verdict:
    """The reward is the share of what the customer needs; the reason says what is missing, in words of its own."""
    answer = str(episode.output.answer) if episode.output else ""
    lacks = [name for name in task.metadata["needs"] if not INSTRUCTIONS[name].met(answer)]
    words = random.Random(answer)
    reason = " ".join(MISSING + words.choice(INSTRUCTIONS[name].wordings) for name in lacks)
    return Verdict(1 - len(lacks) / len(task.metadata["needs"]), not lacks, reason=reason)


class PlantedPrompts:
    """`planted` are names of features, by default four drawn by `seed`; no customer needs any other."""

    def __init__(
        self,
        seed: int,
        n_tasks: int = 60,
        *,
        skill: float = 1.0,
        noise: float = 0.0,
        planted: Sequence[str] = (),
        quotes: bool = False,
    ) -> None:
        """With `quotes` the reflector writes what one customer asked into every text that it proposes."""
        rng = random.Random(f"planted prompts {seed}")
        self.seed, self.skill, self.noise, self.quotes = seed, skill, noise, quotes
        self.planted = frozenset(planted or rng.sample(sorted(INSTRUCTIONS), 4))
        self.tasks = [self._draw_task(number, rng) for number in range(n_tasks)]

    def _draw_task(self, number: int, rng: random.Random) -> dict[str, Any]:
        needs = rng.sample(sorted(self.planted), rng.choice((1, 2)))
        return {"task_id": f"customer-{number:03d}", "query": draw_message(rng).query, "needs": needs}

    def engine(self) -> LoadEngine:
        """The model."""
        return script_engine(self.answer)

    def answer(self, prompt: str) -> str:
        """The words of the model to a rendered prompt."""
        system, query = (prompt.rpartition(f"{role}\n")[2].partition("<|im_end|>")[0] for role in ("system", "user"))
        told = instructions(system)
        if any(sentence in told for sentence in HARMFUL):
            return "Yes."
        kept = [sentence for sentence in told if self._draw(system, query, sentence).random() >= self.noise]
        named = {feature.name: feature for sentence in kept if (feature := meaning(sentence))}
        words = self._draw(query)
        order = re.search(r"\d{5}", query)
        values = {
            "name": query.rpartition("? ")[2],
            "order": order[0] if order else "",
            "day": words.choice(DAYS),
            "amount": "12.50",
        }
        said = [words.choice(feature.sentences) for feature in FEATURES if feature.name in named]
        return " ".join(said or ["We look into it."]).format(**values).strip()

    def reflect(self, request: ReflectionRequest) -> str:
        """The reflector: a new text with one instruction more."""
        reasons = [attempt.reason for result in request.results for attempt in result.attempts]
        luck = self._draw(request.text, *reasons, request.wrong)
        told = {_means(sentence) for sentence in instructions(request.text)}
        asked = sorted({sentence for reason in reasons for sentence in _sentences(reason.replace(MISSING, ""))})
        right = [sentence for sentence in asked if _means(sentence) not in told]
        others = [INSTRUCTIONS[name].wordings[0] for name in sorted(INSTRUCTIONS.keys() - self.planted)]
        wrong = [sentence for sentence in (*others, *VAGUE, *HARMFUL) if _means(sentence) not in told]
        chosen = luck.choice(right if right and luck.random() < self.skill else wrong)
        quoted = f" As for {request.results[0].query}" if self.quotes else ""
        return f"{request.text} {chosen}{quoted}"

    def worth(self, prompt: str) -> float:
        """The mean reward of the prompt at all tasks, as far as no instruction is forgotten."""
        if any(sentence in HARMFUL for sentence in instructions(prompt)):
            return 0.0
        found = self.finds(prompt)
        return sum(len(found & {*row["needs"]}) / len(row["needs"]) for row in self.tasks) / len(self.tasks)

    def finds(self, prompt: str) -> frozenset[str]:
        """The planted instructions that a prompt has."""
        return self.planted & {_means(sentence) for sentence in instructions(prompt)}

    def decoys(self, prompt: str) -> frozenset[str]:
        """The instructions of a prompt that help nobody, by name, or as they are worded."""
        return frozenset(map(_means, instructions(prompt))) - self.planted

    def _draw(self, *content: str) -> random.Random:
        return random.Random("\n".join((str(self.seed), *content)))


def instructions(prompt: str) -> list[str]:
    """The sentences behind the first text of the prompt.

    >>> instructions(FIRST + " Gives a concrete example. Is one word.")
    ['Gives a concrete example.', 'Is one word.']
    """
    return _sentences(prompt.removeprefix(FIRST))


def _sentences(text: str) -> list[str]:
    return [found.strip() for found in re.findall(r"[^.]+\.", text)]


def _means(sentence: str) -> str:
    feature = meaning(sentence)
    return sentence if feature is None else feature.name
