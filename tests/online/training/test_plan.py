"""Which judged answers a commit learns from."""

from collections import Counter
from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from astune.config.online import CommitConfig
from astune.online.store.commits import Wanted
from astune.online.store.feedback.judgements import Judgement, Preference
from astune.online.store.recorded import Heading
from astune.online.training.plan import Item, Plan, Situation, plan_of

RULES = CommitConfig(min_episodes=1, group_wait_seconds=0.0)
NOW = 1_000_000.0
BEHIND = {number: 10 - number for number in range(-1, 11)}
SITUATION = Situation(RULES, Wanted(), BEHIND, now=NOW, siblings=4)


def heading(msg_id: str, conversation: str, task_id: str | None, version: int, age: float) -> Heading:
    return Heading(msg_id, conversation, 0, None, "agent", "", None, task_id, None, "m", version, NOW - age)


def judgement(msg_id: str, task_id: str | None, age: float, kind: str, number: int) -> Judgement:
    return Judgement(
        msg_ids=(msg_id,),
        reward=None if kind == "correction" else 0.5,
        rewards={},
        thumb=True if kind == "thumb" else None,
        corrections=("It is 5.",) if kind == "correction" else (),
        kinds=frozenset([kind]),
        authors=("ana",),
        task_id=task_id,
        run_id=None,
        received=NOW - age,
        feedback_ids=(number,),
    )


@st.composite
def judged(draw: st.DrawFn) -> tuple[list[Judgement], list[Preference], dict[str, Heading]]:
    headings: dict[str, Heading] = {}
    numbers = count()
    said: list[Judgement] = []
    for _ in range(draw(st.integers(0, 12))):
        number = next(numbers)
        task_id = draw(st.sampled_from([None, "t1", "t2"]))
        age, kind = draw(st.floats(0.0, 200.0)), draw(st.sampled_from(["number", "thumb", "correction"]))
        conversation = f"c{draw(st.integers(0, 6))}"
        headings[f"m{number}"] = heading(f"m{number}", conversation, task_id, draw(st.integers(0, 10)), age)
        said.append(judgement(f"m{number}", task_id, age, kind, number))
    compared = []
    for _ in range(draw(st.integers(0, 4))):
        better, worse = f"m{next(numbers)}", f"m{next(numbers)}"
        age = draw(st.floats(0.0, 200.0))
        headings |= {each: heading(each, each, None, draw(st.integers(0, 10)), age) for each in (better, worse)}
        compared.append(Preference(better, worse, 1.0, ("ana",), NOW - age, (next(numbers),)))
    return sorted(said, key=lambda each: each.received), compared, headings


situations = st.builds(
    Situation,
    st.builds(
        CommitConfig,
        min_episodes=st.integers(1, 6),
        max_episodes=st.integers(6, 12),
        max_age_seconds=st.floats(10.0, 300.0),
        max_versions_behind=st.integers(0, 10),
        group_wait_seconds=st.floats(0.0, 100.0),
        weight_thumbs=st.sampled_from([0.0, 1.0]),
        weight_preferences=st.sampled_from([0.0, 1.0]),
        weight_corrections=st.sampled_from([0.0, 1.0]),
    ),
    st.builds(Wanted, st.sampled_from([None, "t1"]), st.none(), st.sampled_from([None, NOW - 50.0])),
    st.just(BEHIND),
    st.just(NOW),
    st.integers(2, 4),
)


def versions_of(item: Item) -> list[int]:
    return [each.version for each in item.headings]


@given(judged(), situations)
def test_everything_judged_is_in_one_place_of_the_plan(
    rows: tuple[list[Judgement], list[Preference], dict[str, Heading]], situation: Situation
) -> None:
    said, compared, headings = rows
    plan = plan_of(said, compared, headings, situation)
    placed = Counter(item.msg_ids for item in (*plan.items, *(item for _, item in plan.left_out)))
    assert set(placed.values()) <= {1}
    assert sum(placed.values()) + sum(plan.waiting.values()) == len(said) + len(compared)
    rules = situation.rules
    assert plan.count == 0 or plan.count >= rules.min_episodes
    assert plan.count <= rules.max_episodes or len(plan.groups) == 1
    for item in plan.items:
        assert all(NOW - each.answered <= rules.max_age_seconds for each in item.headings)
    for group in plan.groups:
        rewarded = [each for each in group if each.by_reward]
        assert len(group) == 1 or (len(rewarded) == len(group) and len({each.judgement.task_id for each in group}) == 1)
        assert len({each.headings[-1].conversation_id for each in group}) == len(group), "nobody is its own sibling"
        if rewarded:
            assert all(min(versions_of(each)) >= 10 - rules.max_versions_behind for each in rewarded)


@given(judged(), situations)
def test_the_same_rows_give_the_same_plan(
    rows: tuple[list[Judgement], list[Preference], dict[str, Heading]], situation: Situation
) -> None:
    said, compared, headings = rows
    assert plan_of(said, compared, headings, situation) == plan_of(said, compared, dict(headings), situation)


def repeats(number: int, age: float = 0.0) -> tuple[list[Judgement], dict[str, Heading]]:
    said = [judgement(f"m{each}", "t", age, "number", each) for each in range(number)]
    return said, {each.msg_ids[0]: heading(each.msg_ids[0], f"c-{each.msg_ids[0]}", "t", 10, age) for each in said}


def plan_for(situation: Situation, number: int, age: float = 0.0) -> Plan:
    said, headings = repeats(number, age)
    return plan_of(said, [], headings, situation)


def test_repeats_of_a_task_wait_for_each_other_but_not_for_ever() -> None:
    waiting = replace(SITUATION, rules=RULES.model_copy(update={"group_wait_seconds": 60.0}))
    assert +plan_for(waiting, 2, age=10.0).waiting == {"for_siblings": 2}
    assert [len(group) for group in plan_for(waiting, 2, age=60.0).groups] == [2]
    assert [len(group) for group in plan_for(waiting, 4, age=10.0).groups] == [4], "as many as are to be had"


def test_of_one_conversation_the_first_and_the_second_answer_are_no_repeats() -> None:
    said, headings = repeats(4)
    headings = {each: replace(found, conversation_id=f"c{int(each[1:]) % 2}") for each, found in headings.items()}
    groups = plan_of(said, [], headings, SITUATION).groups
    assert [[each.msg_ids[0] for each in group] for group in groups] == [["m0", "m1"], ["m2", "m3"]]


def test_repeats_are_told_by_runs_where_these_stand_in_each_others_conversations() -> None:
    """a and b begin alike, and their second answers went to each other's conversation; c and d share their first; e was
    judged half-way and at its end."""
    said, headings = repeats(0)
    rows = [
        (("a1",), "ca", None),
        (("a2",), "cb", "b1"),
        (("b1",), "cb", None),
        (("b2",), "ca", "a1"),
        (("cd", "c"), "cc", None),
        (("cd", "d"), "cc", None),
        (("e1",), "ce", None),
        (("e1", "e2"), "ce", None),
    ]
    for number, (msg_ids, conversation, follows) in enumerate(rows):
        said.append(replace(judgement(msg_ids[0], "t", 0.0, "number", number), msg_ids=msg_ids))
        first = replace(heading(msg_ids[0], conversation, "t", 10, 0.0), follows=follows)
        headings |= {each: replace(first, msg_id=each) for each in msg_ids}
    groups = plan_of(said, [], headings, SITUATION).groups
    assert [["+".join(each.msg_ids) for each in group] for group in groups] == [
        ["a1", "b1", "cd+c", "cd+d", "e1"],
        ["a2", "b2", "e1+e2"],
    ]


def test_of_more_than_it_may_have_a_commit_takes_the_newest() -> None:
    rules = RULES.model_copy(update={"max_episodes": 2})
    said = [judgement(f"m{each}", None, 10.0 - each, "number", each) for each in range(4)]
    headings = {f"m{each}": heading(f"m{each}", f"c{each}", None, 10, 0.0) for each in range(4)}
    plan = plan_of(said, [], headings, replace(SITUATION, rules=rules))
    assert [each.msg_ids for each in plan.candidates] == [("m2",), ("m3",)]
    assert plan.waiting["for_a_later"] == 2
