"""A data set of reasoning-gym as an environment: one question, one answer, the data set's own verifier as score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from astune.environment.environment_base import Action, Environment, Instance, Message, Observation
from astune.errors import ConfigError, TaskError, nearest
from astune.workers.reasoning_gym_client import GymTask, TaskMaker, Verifier

RULES = "Put your final answer between <answer> and </answer>."
SPLITS = ("validation", "test", "train")


class ReasoningGymEnvironment(Environment):
    """`size` tasks to train on and a tenth as many in each of the splits validation and test, no two with the same
    question; `options` are those of the data set. Raises `ConfigError`, `TaskError` if the data set has not so many,
    and `MissingDependency`.

        environment = ReasoningGymEnvironment("chain_sum", max_terms=3)
        environment.create("train-0", {}).first_messages()[1]["content"]   # "State the final answer to ... 426 + 562 ="
    """

    def __init__(self, name: str, seed: int = 0, size: int = 200, **options: Any) -> None:
        self.env_type = f"reasoning_gym:{name}"
        for option, value, lowest in (("seed", seed, 0), ("size", size, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise ConfigError(
                    f"environment {self.env_type!r}: option {option}: expected a whole number from {lowest}, "
                    f"found {value!r}"
                )
        self._verifier = Verifier()
        sizes = {"validation": max(1, size // 10), "test": max(1, size // 10), "train": size}
        drawn = TaskMaker().draw(name, options, seed, sum(sizes.values()), f"environment {self.env_type}")
        self._tasks = {
            f"{split}-{index}": task for split in SPLITS for index, task in enumerate(islice(drawn, sizes[split]))
        }

    def task_ids(self, split: str) -> Sequence[str]:
        if split not in SPLITS:
            raise TaskError(
                f"{self.env_type}: no split {split!r}; there are {', '.join(SPLITS)}.{nearest(split, SPLITS)}"
            )
        return [task_id for task_id in self._tasks if task_id.startswith(f"{split}-")]

    def create(self, task_id: str, params: Mapping[str, Any]) -> ReasoningGymInstance:
        if task_id not in self._tasks:
            raise TaskError(f"{self.env_type}: no task {task_id!r}.{nearest(task_id, self._tasks)}")
        return ReasoningGymInstance(self._verifier, self._tasks[task_id])


class ReasoningGymInstance(Instance):
    """The first text is the answer: what stands in its last <answer>, or all of it."""

    def __init__(self, verifier: Verifier, task: GymTask) -> None:
        self._verifier = verifier
        self._task = task
        self._score = 0.0

    def first_messages(self) -> Sequence[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self._task.question}]

    def step(self, action: Action) -> Observation:
        if action.tool_calls:
            says = f"There are no tools here. {RULES}"
            return Observation(
                tuple({"role": "tool", "tool_call_id": call.id, "content": says} for call in action.tool_calls)
            )
        reply = self._verifier.score(self._task.dataset, self._task.entry, _answer(action.text)).result()
        self._score = reply["score"]
        return Observation(({"role": "user", "content": f"Score: {self._score:g}"},), self._score, done=True)

    def evaluate(self) -> float:
        return self._score


def _answer(text: str) -> str:
    inside, closed, _ = text.rpartition("</answer>")
    _, opened, answer = inside.rpartition("<answer>")
    return answer.strip() if closed and opened else text.strip()
