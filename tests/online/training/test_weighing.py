"""What one author and one word weigh in the loss of a commit, whatever they send."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.online.store.commits import CommitRow
from astune.online.store.feedback.states import FeedbackPart
from astune.online.training.log import line_of
from astune.online.training.weighing import Author, limit_authors, weigh
from astune.store import tables
from astune.store.database import Database
from astune.types import Sample, Span, Timeline
from tests.online.training.world import World, config_of
from tests.online.training.world import database as database

LINE = Timeline("agent", (1, 2), (Span(0, 1, 2, 0, 1.0, True, (0.0,)),))
HONEST = 11


said = st.tuples(st.sampled_from("abcdefgh"), st.floats(1e-6, 1e3))


@given(st.lists(st.lists(said, max_size=6), min_size=1, max_size=3), st.floats(0.01, 1.0))
def test_no_author_has_more_than_the_share_and_all_together_have_what_they_had(
    parts: list[list[tuple[str, float]]], most: float
) -> None:
    def sizes(updates: list[list[Sample]]) -> Counter[str]:
        found = Counter[str]()
        for sample in (sample for update in updates for sample in update):
            found[sample.episode_id] += sample.weight_sum
        return found

    updates = [[Sample(LINE, (1.0,), (weight,), "t", author) for author, weight in part] for part in parts]
    before = sizes(updates)
    made, _ = limit_authors(updates, lambda sample: [Author("", sample.episode_id, "")], most)
    after = sizes(made)
    assert after.total() == pytest.approx(before.total())
    limit = max(most, 1 / len(before)) * after.total() * 1.001 if before else 0.0
    assert all(size <= limit for size in after.values())
    small = [author for author in before if after[author] < limit / 1.01]
    assert all(after[author] >= before[author] * (1 - 1e-6) for author in small), "who says little loses nothing by it"


def test_a_lesson_beside_weighs_as_one_rated_answer_however_long_it_is() -> None:
    rated, lesson = (Sample(LINE, (1.0,), (weight,), "t", name) for name, weight in (("r", 1.0), ("l", 4.0)))
    ((answer, beside),) = weigh([[rated]], [([lesson], 1.0)])
    assert answer.weight_sum == beside.weight_sum == 0.5


def rate_by_eve(world: World, count: int) -> None:
    for number in range(count):
        world.say(0.0, about=[world.answer(f"eve-{number}")], author="eve")


def correct(world: World, count: int) -> None:
    for number in range(count):
        world.say(
            FeedbackPart("correction", correction="no " * 300), about=[world.answer(f"eve-{number}")], author="eve"
        )


def compare(world: World, count: int) -> None:
    for number in range(count):
        ids = [world.answer(f"eve-{number}-{side}", output=(4,) * 200) for side in "ab"]
        world.say(FeedbackPart("preference"), better=ids[0], worse=ids[1], author="eve")


def thumb(world: World, count: int) -> None:
    for number in range(count):
        world.say(
            FeedbackPart("thumb", value=0.0), about=[world.answer(f"eve-{number}", output=(4,) * 200)], author="eve"
        )


def everything(world: World, count: int) -> None:
    for number in range(count):
        said = (FeedbackPart("thumb", value=1.0), FeedbackPart("correction", correction="no"))
        world.say(*said, about=[world.answer(f"eve-{number}")], author="eve")


def share_of_eve(world: World, row: CommitRow) -> float:
    """Of all weights of the commit."""
    links = world.rows(tables.episode_messages)
    of_eve = {link["episode_id"] for link in links if link["msg_id"].startswith("eve")}
    sizes = Counter[bool]()
    for each in world.rows(tables.samples):
        if each["commit_id"] == row.number:
            sizes[each["episode_id"] in of_eve] += each["weight"] * each["tokens"]
    return sizes[True] / sizes.total()


@pytest.mark.fault(
    "Online training",
    "one user corrects, compares or rates many answers to turn the model",
    "what it says weighs no more than `most_per_author` of what a version learns; what is more waits",
)
@pytest.mark.parametrize(
    ("attack", "aggregation"),
    [
        (rate_by_eve, "episode_mean"),
        (correct, "token_mean"),
        (compare, "episode_mean"),
        (thumb, "constant"),
        (everything, "turn_mean"),
    ],
)
def test_one_user_has_no_more_than_its_share_whatever_it_sends(
    database: Database, tmp_path: Path, attack: Callable[[World, int], None], aggregation: str
) -> None:
    kto = 0.5 if attack is thumb else 0.0
    rules: dict[str, Any] = {"most_per_author": 0.2, "min_episodes": 8, "weight_thumbs": kto, "replay_share": 0.5}
    config = config_of(**rules, astune={"algorithm": {"loss_aggregation": aggregation}})
    world = World(database, tmp_path, config)
    for _ in range(2):  # the second one learns from the first again, too
        for number in range(HONEST):
            world.rate(number / HONEST)
        if not world.rows(tables.commits):
            attack(world, 30)
        row = world.commit()
        assert row.state == "made" and share_of_eve(world, row) <= 0.2 + 1e-9
        assert row.number > 1 or "authors said more than their share" in line_of(row)


@pytest.mark.parametrize("aggregation", ["episode_mean", "token_mean", "turn_mean", "task_mean"])
@pytest.mark.parametrize("text", ["no", "no " * 500])
def test_a_correction_weighs_like_one_rated_answer_however_few_there_are_and_however_long(
    database: Database, tmp_path: Path, aggregation: str, text: str
) -> None:
    world = World(database, tmp_path, config_of(astune={"algorithm": {"loss_aggregation": aggregation}}))
    for number in range(HONEST):
        world.rate(number / HONEST)
    world.say(FeedbackPart("correction", correction=text), about=[world.answer("wrong")])
    assert world.commit().state == "made"
    sizes: dict[str, float] = defaultdict(float)
    for each in world.rows(tables.samples):
        sizes[each["method"]] += each["weight"] * each["tokens"]
    assert sum(sizes.values()) == pytest.approx(1.0)
    rated = {each["episode_id"] for each in world.rows(tables.samples) if each["method"] == "policy"}
    assert sizes["sft"] == pytest.approx(sizes["policy"] / len(rated))


def test_what_one_user_alone_says_waits_for_others_and_says_so(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(min_episodes=8))
    correct(world, 12)
    row = world.commit()
    assert row.state == "empty" and row.figures is not None
    assert row.figures["waiting/for_other_authors"] == 12.0
    assert "is of 1 author, and a version is made from 8 or more" in str(row.figures["why"])
    assert {each["state"] for each in world.rows(tables.feedback)} == {"counts"}
    for number in range(7):
        world.rate(number**2 / 36)
    row = world.commit()
    assert row.state == "made" and share_of_eve(world, row) == pytest.approx(1 / 8), "of so few all have the same"


def test_among_people_who_like_everything_one_who_corrects_makes_no_version(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(min_episodes=8, every_episodes=8))
    world.rate(1.0, 20)
    correct(world, 4)
    trainer = world.trainer()
    row = world.tick(trainer)
    assert row is not None and row.state == "empty" and row.figures is not None
    assert (row.figures["left_out/no_signal"], row.figures["waiting/for_other_authors"]) == (20.0, 4.0)
    world.rate(1.0, 20)
    assert world.tick(trainer) is None


def test_people_without_a_name_are_told_apart_by_conversation(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(min_episodes=4, most_per_author=0.3))
    world.answer("a0", conversation="a")
    for number in range(8):
        world.say(number / 8, about=[world.answer(f"a{number + 1}", conversation="a")], author="")
    for number in range(3):
        world.say(number / 3, about=[world.answer(f"b{number}")], author="")
        world.say(number / 4, about=[world.answer(f"c{number}", user="ana")], author="")
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    assert row.figures["authors"] == 5.0, "one conversation, three others, and a user whom the agent has named"
    assert row.figures["authors/bounded"] == 2.0, "those two have said more than one answer each"


def test_one_user_takes_nobodys_place_in_a_commit(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(min_episodes=5, max_episodes=10, most_per_author=0.2))
    for number in range(6):
        world.rate(number / 6)
    rate_by_eve(world, 20)
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    assert row.figures["episodes/trained"] == 8.0 and row.figures["waiting/for_other_authors"] == 18.0
