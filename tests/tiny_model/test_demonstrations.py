import json
import random
from itertools import islice

from astune.support.resources import tutorial_dir
from scripts.tiny_model.demonstrations import Habits, attempt, demonstrations
from tutorial.math_agent.calculator import calculator
from tutorial.math_agent.make_tasks import problems, split_of

TALKS = list(islice(demonstrations(5, Habits()), 2000))


def test_the_warm_up_shows_no_problem_of_training_or_heldout():
    data = tutorial_dir() / "math_agent" / "data"
    files = [data / "train.jsonl", data / "heldout.jsonl"]
    tasks = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    asked = {message["content"] for talk in TALKS for message in talk.messages if message["role"] == "user"}
    assert not asked & {task["query"] for task in tasks}
    assert all(split_of(p.kind, p.numbers) == "warmup" for p in islice(problems("warmup", 5), 2000))


def test_results_are_the_calculators_and_the_answer_is_the_last_result():
    for talk in TALKS:
        for call, result in zip(talk.messages, talk.messages[1:], strict=False):
            if result["role"] == "tool":
                (wanted,) = call["tool_calls"]
                expression = json.loads(wanted["function"]["arguments"])["expression"]
                assert result["content"] == calculator(expression)
            elif call["role"] == "tool" and result["role"] == "assistant" and result["content"]:
                assert result["content"] in (f"The answer is {call['content']}.", "I do not know.")


def solved(habits, count=3000):
    rng = random.Random(3)
    tasks = list(islice(problems("warmup", 9), count))
    results = [(p.kind, attempt(p, rng, habits)[-1]["content"] == f"The answer is {p.answer}.") for p in tasks]
    kinds = {kind for kind, _ in results}
    rates = {kind: [right for k, right in results if k == kind] for kind in kinds}
    return {kind: sum(rights) / len(rights) for kind, rights in rates.items()}


def test_the_sloppy_solver_fails_most_tasks_and_solves_some_of_every_kind():
    rates = solved(Habits())
    assert sum(rates.values()) / len(rates) < 0.45
    assert min(rates.values()) > 0.02


def test_a_solver_without_bad_habits_solves_all():
    assert set(solved(Habits(right=1.0, plus=0.0, swap_order=0.0, wrong_pair=0.0, stop_early=0.0)).values()) == {1.0}
