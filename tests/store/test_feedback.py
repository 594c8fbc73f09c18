from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.judgements import judgements, preferences
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, accept, add, load_held, mark, settle
from astune.store.database import Database
from astune.store.tables import audit
from tests.store.databases import database as database
from tests.store.databases import url as url
from tests.store.feedback_cases import record, say, states, train

RULES = FeedbackConfig(wait_seconds=100)


@pytest.fixture
def connection(database: Database) -> Iterator[sa.Connection]:
    with database.writing() as connection:
        yield connection


def reward_of(connection: sa.Connection, rules: FeedbackConfig = RULES) -> dict[tuple[str, ...], float | None]:
    return {one.msg_ids: one.reward for one in judgements(connection, rules)}


@pytest.mark.fault(
    "Online training", "Feedback is sent again, as its reply was lost", "It is acknowledged again and counts once"
)
def test_the_very_same_twice_counts_once(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    assert not say(connection, 0.5, at=1).duplicate
    again = say(connection, 0.5, at=2)
    assert (again.state, again.duplicate) == ("counts", True)
    assert reward_of(connection) == {("m",): 0.5}
    assert states(connection) == ["counts"]


def test_the_last_word_of_an_author_counts_whatever_kind_it_is(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    say(connection, 1.0, at=1)
    say(connection, FeedbackPart("thumb", value=0.0), at=2)
    assert reward_of(connection) == {("m",): 0.0}
    say(connection, FeedbackPart("number", "help", 0.5), FeedbackPart("number", "speed", 0.25), at=3)
    assert reward_of(connection) == {("m",): 0.75}
    say(connection, FeedbackPart("number", "speed", 0.5), at=4)
    assert reward_of(connection) == {("m",): 1.0}
    say(connection, FeedbackPart("rating", value=0.25), at=5)
    assert reward_of(connection) == {("m",): 0.25}


def test_named_rewards_add_up_by_weight(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    say(connection, FeedbackPart("number", "help", 0.5), FeedbackPart("number", "speed", 1.0))
    rules = FeedbackConfig(rewards={"speed": 0.1})
    (judgement,) = judgements(connection, rules)
    assert judgement.reward == pytest.approx(0.6)
    assert judgement.rewards == {"help": 0.5, "speed": 1.0}


@pytest.mark.parametrize(("values", "reward"), [((1.0, 1.0), 1.0), ((0.5, 0.25), 0.75), ((-1.0, -1.0), -1.0)])
def test_a_sum_of_named_rewards_is_no_more_than_one_may_say(
    connection: sa.Connection, values: tuple[float, float], reward: float
) -> None:
    record(connection, "c", ["m"])
    rules = FeedbackConfig(rewards={"help": 1.0, "speed": 1.0}, least=-1.0)
    say(connection, FeedbackPart("number", "help", values[0]), FeedbackPart("number", "speed", values[1]), rules=rules)
    (judgement,) = judgements(connection, rules)
    assert (judgement.reward, judgement.cut) == (reward, abs(sum(values)) > 1)


@pytest.mark.fault(
    "Online training",
    "the store has rewards of a name to which the configuration gives no weight",
    "they are held for a look, and count once they have a weight and are accepted",
)
def test_a_reward_without_a_weight_is_held(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    say(
        connection,
        *(FeedbackPart("number", f"r{number}", 1.0) for number in range(100)),
        FeedbackPart("number", "help", 0.5),
    )
    rules = FeedbackConfig(rewards={"help": 1.0})
    for now in (1, 2):
        settle(connection, rules, now)
        assert reward_of(connection, rules) == {("m",): 0.5}
        assert len(load_held(connection)) == 100
        accept(connection, load_held(connection), rules, now)
    more = FeedbackConfig(rewards={"help": 0.5, "r7": 0.25})
    settle(connection, more, 3)
    assert reward_of(connection, more) == {("m",): 0.5}


def test_feedback_judges_the_way_to_an_answer_within_its_exchange(connection: sa.Connection) -> None:
    record(connection, "c", ["a", "b", "d", "e"], exchanges=["a", "a", "d", "d"])
    say(connection, 1.0, about=["b"], at=1)
    say(connection, 0.0, about=["a", "b"], at=2)
    say(connection, 0.5, about=["e", "b"], at=3)
    assert reward_of(connection) == {("a", "b"): 0.0, ("a", "b", "d", "e"): 0.5}


def test_what_an_author_corrects_again_after_the_correction_was_trained_is_late(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    say(connection, FeedbackPart("correction", correction="so"))
    (judgement,) = judgements(connection, RULES)
    train(connection, judgement.msg_ids)
    mark(connection, judgement.feedback_ids, "trained", "v1", 1)
    assert say(connection, FeedbackPart("correction", correction="or so"), at=2).state == "late"
    assert say(connection, FeedbackPart("correction", correction="or so"), at=3, author="ben").state == "counts"


def test_an_episode_that_was_left_out_may_still_be_judged(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    train(connection, ["m"], state="left_out")
    assert say(connection, 1.0).state == "counts"


@pytest.mark.fault("Online training", "A client rewards another client's answers", "It is refused, and written down")
def test_a_client_cannot_judge_answers_of_another(connection: sa.Connection) -> None:
    record(connection, "c", ["m"], client="one")
    record(connection, "d", ["n"], client="two")
    outcome = say(connection, 1.0, about=["n", "m"], client="two")
    assert (outcome.state, outcome.reason) == ("refused", "it is about another client's answers")
    assert say(connection, 1.0, about=["m", "unknown"], client="two").state == "refused"
    say(connection, 1.0, about=["later"], client="two")
    record(connection, "e", ["later"], client="one")
    settle(connection, RULES, 1)
    assert states(connection) == ["refused"] * 3
    assert judgements(connection, RULES) == []


def test_comparisons_are_counted_by_pair(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    record(connection, "d", ["n"])
    pair = FeedbackPart("preference", "preference")
    for author in ("ana", "ben", "cem"):
        say(connection, pair, about=[], better="m", worse="n", author=author)
    say(connection, pair, about=[], better="n", worse="m", author="cem", at=1)
    (preference,) = preferences(connection)
    assert (preference.better, preference.worse) == ("m", "n")
    assert preference.agreement == pytest.approx(1 / 3)
    say(connection, pair, about=[], better="n", worse="m", author="dan", at=2)
    assert preferences(connection) == []
    assert judgements(connection, RULES) == []


def test_a_person_speaks_before_a_judge_whoever_came_first(connection: sa.Connection) -> None:
    record(connection, "c", ["a", "b"])
    record(connection, "d", ["m"])
    say(connection, 1.0, about=["a", "b"], author="judge:math")
    say(connection, 0.0, about=["a"])
    say(connection, 0.0, about=["m"])
    assert say(connection, 1.0, about=["m"], author="judge:math").state == "replaced"
    assert reward_of(connection) == {("a",): 0.0, ("m",): 0.0}


@pytest.mark.fault(
    "Online training", "A user sends more feedback than is plausible", "It is held until somebody accepts or refuses it"
)
def test_more_than_the_limits_is_held(connection: sa.Connection) -> None:
    rules = FeedbackConfig(per_user_per_hour=2, per_conversation=3)
    record(connection, "c", ["a", "b", "d", "e", "f"], exchanges=["a", "b", "d", "e", "f"])
    two = (FeedbackPart("number", "x", 1.0), FeedbackPart("number", "y", 1.0))
    assert [say(connection, *two, about=[one], rules=rules).state for one in "abd"] == ["counts", "counts", "held"]
    assert say(connection, 1.0, about=["d"], author="ben", rules=rules).state == "held"
    assert say(connection, 1.0, about=["e"], at=3600.0, author="cem", rules=rules).reason == (
        "more than 3 about one conversation"
    )
    assert say(connection, *two, about=["a"], rules=rules).state == "counts"


def test_what_came_by_a_clock_that_was_far_ahead_is_not_of_the_hour_before(connection: sa.Connection) -> None:
    record(connection, "c", ["a", "b"], exchanges=["a", "b"])
    rules = FeedbackConfig(per_user_per_hour=1)
    assert say(connection, 1.0, about=["a"], at=3e7, rules=rules).state == "counts"
    assert say(connection, 1.0, about=["b"], at=1.0, rules=rules).state == "counts"


@pytest.mark.fault(
    "Online training",
    "Somebody sends much feedback without saying who it is",
    "What is more than `unnamed_per_hour` of a client is held",
)
@pytest.mark.parametrize("client", ["", "app"])
def test_people_without_a_name_have_a_limit_together_and_take_nothing_from_others(
    connection: sa.Connection, client: str
) -> None:
    rules = FeedbackConfig(unnamed_per_hour=2)
    for conversation in "abdef":
        record(connection, conversation, [conversation], client=client if conversation != "f" else "other")
    unnamed = [
        say(connection, 1.0, about=[one], at=at, author=client, client=client, rules=rules)
        for at, one in enumerate("abd")
    ]
    assert [one.state for one in unnamed] == ["counts", "counts", "held"]
    assert unnamed[-1].reason == "more than 2 by people without a name in an hour"
    assert say(connection, 1.0, about=["e"], at=3, author="ana", client=client, rules=rules).state == "counts"
    assert say(connection, 1.0, about=["f"], at=3, author="other", client="other", rules=rules).state == "counts"
    assert say(connection, 1.0, about=["e"], at=3603, author=client, client=client, rules=rules).state == "counts"


def test_every_change_of_a_state_is_in_the_audit(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    say(connection, 1.0, at=1)
    say(connection, 0.0, at=2)
    say(connection, 0.0, at=3)
    assert list(connection.scalars(sa.select(audit.c.what).order_by(audit.c.id))) == [
        "feedback_counts",
        "feedback_counts",
        "feedback_replaced",
        "feedback_again",
    ]


def test_a_body_that_says_several_things_is_as_good_as_its_best_part(connection: sa.Connection) -> None:
    record(connection, "c", ["m"])
    train(connection, ["m"])
    new = NewFeedback(
        1.0, "ana", "", (FeedbackPart("thumb", value=0.0), FeedbackPart("correction", correction="so")), ("m",)
    )
    assert add(connection, new, RULES).state == "counts"
    assert sorted(states(connection)) == ["counts", "late"]
