"""Which criteria become the rubric: those that tell on dev, each once, beside what is kept."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from astune.clients.chat_models import ChatModels
from astune.config.judges import LlmJudgeConfig
from astune.rubrics.choose import Choice, choose
from astune.rubrics.examples import RubricExample
from astune.rubrics.judge_examples import Asking, Scores
from astune.rubrics.split import Split
from astune.task_judge.llm.fence import read_fences
from astune.task_judge.llm.rubric import Criterion
from astune.testing import ScriptedChatServer
from astune.testing.planted_rubrics import NoWatch


def judge(body: dict[str, Any]) -> str:
    """A criterion 'Says X ...' is met by answers with the letter X."""
    fences = dict(read_fences(body["messages"][1]["content"]))
    lines = [line.split(" | ") for line in fences["criteria"].splitlines()]
    said = [(name, set(re.findall("[A-Z]", text.removeprefix("Says ")))) for name, _, text in lines]
    scores = [{"id": n, "reason": "", "score": int(bool(letters & set(fences["answer"])))} for n, letters in said]
    return json.dumps({"criteria": scores})


def says(letter: str, **fields: Any) -> Criterion:
    words = {"A": "apples", "B": "bridges", "C": "candles", "K": "kites"}
    return Criterion(id=letter, text=f"Says {letter} {words[letter]}", **fields)


def pairs(part: str, *answers: tuple[str, str]) -> tuple[RubricExample, ...]:
    """Pairs of (better, worse) answers, each made different from all others by a number."""
    return tuple(
        RubricExample(f"{part}{n}", f"{part}{n}", (f"{better} {n} 0", f"{worse} {n} 1"), (1.0, 0.0))
        for n, (better, worse) in enumerate(answers)
    )


@pytest.fixture
def chosen():
    async def chosen(
        split: Split, pool: Sequence[Criterion], kept: Sequence[str] = (), at_most: int = 8
    ) -> Choice | None:
        with ScriptedChatServer(judge, usage=True) as server:
            llm = LlmJudgeConfig(models=({"base_url": server.base_url, "model": "m"},), cache=None)  # type: ignore[arg-type]
            scores = Scores(Asking(ChatModels(llm), llm, NoWatch()), (*split.train, *split.dev))
            await scores.add(pool, "")
        return choose(pool, kept, scores, split, "paired", at_most, 0)

    return chosen


TEST = pairs("test", ("A", "B"))


async def test_a_criterion_that_tells_on_train_but_not_on_dev_is_not_taken(chosen):
    split = Split(pairs("train", *[("AB", "x")] * 8), pairs("dev", ("A", "B"), ("AB", "x"), ("A", "B")), TEST)
    choice = await chosen(split, [says("B"), says("A")])
    assert [one.id for one in choice.criteria] == ["A"]
    assert (choice.helps["A"], choice.helps["B"]) == (1.0, pytest.approx(-1 / 3))
    assert choice.dev.accuracy == 1.0


async def test_where_nothing_tells_on_dev_there_is_no_choice(chosen):
    split = Split(pairs("train", *[("A", "x")] * 4), pairs("dev", ("x", "A")), TEST)
    assert await chosen(split, [says("A")]) is None


async def test_of_criteria_that_do_the_same_one_is_taken(chosen):
    split = Split(pairs("train", *[("AB", "x")] * 8), pairs("dev", *[("AB", "x")] * 4), TEST)
    assert len((await chosen(split, [says("A"), says("B")])).criteria) == 1


async def test_what_is_kept_stays_as_it_is_and_counts_among_the_most(chosen):
    split = Split(
        pairs("train", *[("ABC", "K")] * 3, ("A", "x"), ("B", "x"), ("C", "x")), pairs("dev", ("ABC", "x")), TEST
    )
    kept = says("K", weight=3.0, edited=True)
    choice = await chosen(split, [kept, says("A"), says("B"), says("C")], kept=["K"], at_most=3)
    assert choice.criteria[0] == kept and len(choice.criteria) == 3


async def test_weights_follow_how_much_a_criterion_tells(chosen):
    train = pairs("train", *[("AB", "x")] * 2, *[("A", "x")] * 6, *[("B", "x")] * 4, ("A", "B"))
    choice = await chosen(Split(train, pairs("dev", ("AB", "x")), TEST), [says("B"), says("A")])
    assert [one.id for one in choice.criteria] == ["A", "B"]
    assert choice.criteria[0].weight > choice.criteria[1].weight > 0


@pytest.mark.fault(
    "Rubrics", "a criterion hardly helps, but gets a weight", "it counts the less the less it helps beside the best"
)
async def test_a_decoy_that_hardly_helps_hardly_counts(chosen):
    train = pairs("train", *[("AB", "B")] * 8, *[("AB", "A")] * 2, *[("A", "B")] * 1)
    dev = pairs("dev", *[("AB", "B")] * 7, *[("AB", "A")] * 2, ("A", "B"))
    choice = await chosen(Split(train, dev, TEST), [says("B"), says("A")])
    weights = {one.id: one.weight for one in choice.criteria}
    assert (choice.helps["A"], choice.helps["B"]) == (pytest.approx(0.8), pytest.approx(0.1))
    assert weights["A"] > 0 and weights.get("B", 0.0) <= 0.3 * weights["A"]
