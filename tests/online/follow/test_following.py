"""What followed an answer is judged, and what the judge says counts until a person speaks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from astune.cli.online.train import _status_lines
from astune.config.online import FeedbackConfig
from astune.online.follow.followed import Followed
from astune.online.follow.verdict import FollowVerdict
from astune.online.redaction import Redactor
from astune.online.service.metrics import feedback_metrics
from astune.online.service.records import new_record, write_record
from astune.online.store import audit
from astune.online.store.feedback.following import DISTRUSTED, TRUSTED, follow_figures
from astune.online.store.feedback.judgements import Judgement, judgements
from astune.online.store.feedback.states import settle
from astune.online.training.following import FollowingJudge
from astune.online.training.log import status_of
from astune.online.wire import ConversationRecord, read_wire
from astune.store.database import Database, open_database
from astune.store.tables import feedback
from astune.support.http.metrics import write_metrics
from tests.online.training.world import World, config_of
from tests.rows import each_row
from tests.store.databases import database as database
from tests.store.databases import url as url

SEEN: list[Followed] = []
SYSTEM = {"role": "system", "content": "You add."}


def watch(seen: Followed) -> FollowVerdict:
    """A judge that takes all that it is shown for a complaint, but a + for praise, and a 0 for nothing."""
    SEEN.append(seen)
    return FollowVerdict(1 if "+" in seen.said else 0 if "0" in seen.said else -1, "why", "a hint")


def fails(seen: Followed) -> FollowVerdict:
    SEEN.append(seen)
    raise ValueError("I cannot tell")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    SEEN.clear()
    with closing(open_database(f"sqlite:///{tmp_path}/online.db")) as database:
        yield World(database, tmp_path)


@pytest.fixture
def any_world(database: Database, tmp_path: Path) -> World:
    SEEN.clear()
    return World(database, tmp_path)


def judge_of(world: World, name: str = "watch", **keys: Any) -> FollowingJudge:
    follow = {"judge": f"{__name__}:{name}", **keys}
    feedback_keys = {"follow": follow} | ({"hold_outliers": 4.0} if name == "watch" else {})
    world.config = config_of(astune={"online": {"commit": {"min_episodes": 1}, "feedback": feedback_keys}})
    return FollowingJudge(world.config.astune, world.database, clock=world.clock)


def talk(world: World, name: str, *said: str, user: str | None = None, **first: Any) -> list[str]:
    """A conversation, of whose messages every other one is an answer; the ids of its answers."""
    ids: list[str] = []
    messages: list[Mapping[str, Any]] = [SYSTEM]
    for number, (asked, answer) in enumerate(zip(said[::2], said[1::2], strict=True)):
        messages.append({"role": "user", "content": asked})
        follows = ids[-1] if ids else None
        ids.append(
            world.answer(
                f"{name}{number}",
                conversation=name,
                follows=follows,
                messages=messages,
                said=answer,
                user=user,
                **first,
            )
        )
        messages = [*messages, {"role": "assistant", "content": answer}]
    return ids


def judged(world: World) -> list[Judgement]:
    with world.database.reading() as connection:
        return judgements(connection, FeedbackConfig())


async def test_the_next_message_is_what_followed_and_is_judged_once(world: World) -> None:
    talk(world, "a", "2+2?", "5", "No.", "4", "0", "ok")
    talk(world, "b", "1+1?", "2")
    done = await judge_of(world).judge_due()
    assert (done.scored, done.silent) == (1, 1), "of the last answers nothing is known yet"
    assert [(seen.kind, seen.question, seen.answer, seen.said) for seen in SEEN] == [
        ("message", "2+2?", "5", "No."),
        ("message", "No.", "4", "0"),
    ]
    assert [message["content"] for message in SEEN[0].messages] == ["2+2?", "5"]
    (judgement,) = judged(world)
    assert (judgement.msg_ids, judgement.reward) == (("a0",), 0.0)
    assert judgement.authors == (f"judge:follow:{__name__}:watch",)
    rows = [(row["value"], row["state"], row["comment"], row["hint"]) for row in world.rows(feedback)]
    assert rows == [(0.0, "counts", "why", "a hint"), (None, "left_out", "why", "a hint")]
    with world.database.reading() as connection:
        assert [each.votes for each in follow_figures(connection, FeedbackConfig())] == [{"-1": 1, "0": 1}]
    assert (await judge_of(world).judge_due()).scored == 0, "after a restart"
    assert len(SEEN) == 2


MAKE_TITLE = {"role": "user", "content": "Write a title for: 2+2? 5"}
TOOL = {"type": "function", "function": {"name": "pad", "parameters": {}}}
FIRST = [SYSTEM, {"role": "user", "content": "2+2?"}]
SECOND = [*FIRST, {"role": "assistant", "content": "5"}]
SUMMARY = "The user asked how much two and two are, and was told 5."


@each_row(
    "later, kind, said",
    [
        ([{"messages": [*SECOND, MAKE_TITLE], "follows": "q", "tools": (TOOL,)}], None, ""),
        ([{"messages": [{**SYSTEM, "content": "Make titles."}, *SECOND[1:], MAKE_TITLE], "follows": "q"}], None, ""),
        ([{"messages": [MAKE_TITLE]}], None, ""),
        (
            [
                {"messages": [*SECOND, {"role": "user", "content": "Summarise."}], "follows": "q", "said": SUMMARY},
                {"messages": [{**SYSTEM, "content": SUMMARY}, *SECOND[1:], {"role": "user", "content": "No!"}]},
            ],
            None,
            "",
        ),
        (
            [
                {"messages": [{**SYSTEM, "content": "Noon."}, *SECOND[1:], {"role": "user", "content": "No!"}]}
                | {"follows": "q", "said": "4"},
                {"messages": [*SECOND, *SECOND[1:], {"role": "user", "content": "Oh."}], "follows": "l0"},
            ],
            "message",
            "No!",
        ),
        ([{"messages": FIRST}], "retry", "2+2?"),
        ([{"messages": FIRST, "soon": True}], None, ""),
        ([{"messages": [SYSTEM, {"role": "user", "content": "2+3?"}]}], "edit", "2+3?"),
        (
            [{"messages": [*FIRST, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And?"}]}],
            "corrected",
            "4",
        ),
    ],
    ids=[
        "a title asked with other tools",
        "a title asked with another system message",
        "a title asked by itself",
        "a summary that stands in a later message",
        "a system message that changes, in a conversation that goes on",
        "the same question again",
        "a program's second attempt",
        "another question in its place",
        "another answer in its place",
    ],
)
async def test_only_what_a_person_did_on_the_main_line_is_what_followed(
    later: Sequence[dict[str, Any]], kind: str | None, said: str, tmp_path: Path
) -> None:
    SEEN.clear()
    with closing(open_database(f"sqlite:///{tmp_path}/online.db")) as database:
        world = World(database, tmp_path)
        world.answer("q", conversation="c", messages=FIRST, said="5")
        for number, each in enumerate(later):
            world.now += 0.0 if each.pop("soon", False) else 10.0
            world.answer(f"l{number}", conversation="c", **each)
        await judge_of(world).judge_due()
    assert [(seen.kind, seen.said) for seen in SEEN if seen.question == "2+2?"][:1] == ([(kind, said)] if kind else [])


async def test_in_a_recorded_conversation_the_next_message_is_there_already(world: World) -> None:
    judge = judge_of(world)
    said = ["2+2?", "5", "No.", "4"]
    for count in (2, 4, 4):  # sent again as it grows
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said[:count])]
        body = read_wire(ConversationRecord, {"conversation_id": "c", "messages": messages, "user": "ana"})
        rules = world.config.astune.online.feedback
        record = new_record(body, "", world.now, Redactor(None), rules)
        world.database.write(partial(write_record, new=record, rules=rules))
        world.now += 10
        await judge.judge_due()
    assert [(seen.question, seen.said) for seen in SEEN] == [("2+2?", "No.")]
    (judgement,) = judged(world)
    assert (judgement.msg_ids, judgement.reward) == ((record.requests[0].msg_id,), 0.0)


async def test_silence_is_judged_only_where_it_is_asked_for(world: World) -> None:
    talk(world, "a", "2+2?", "4")
    world.now += 100.0
    await judge_of(world).judge_due()
    assert SEEN == []
    await judge_of(world, silence_seconds=50.0).judge_due()
    assert [seen.kind for seen in SEEN] == ["silence"]


async def test_a_person_s_word_counts_and_the_judge_s_is_compared_with_it(world: World) -> None:
    world.say(1.0, about=talk(world, "a", "2+2?", "4", "No.", "5")[:1])
    talk(world, "b", "1+1?", "2", "No.", "3")
    await judge_of(world).judge_due()
    world.say(1.0, about=["b0"])
    assert {one.msg_ids[0]: (one.reward, one.authors) for one in judged(world)} == {
        "a0": (1.0, ("ana",)),
        "b0": (1.0, ("ana",)),
    }
    with world.database.reading() as connection:
        (figures,) = follow_figures(connection, FeedbackConfig())
    assert (figures.votes, figures.compared, figures.agreed, figures.kappa) == ({"-1": 2}, 2, 0, 0.0)
    status = "\n".join(_status_lines(status_of(world.database, world.now)))
    assert "watch: 0 +1, 2 -1, 0 0; agrees with people on 0 of 2, kappa 0.00\n" in status
    with world.database.reading() as connection:
        metrics = write_metrics(feedback_metrics(connection)).decode()
    assert 'astune_follow_compared{agree="no",judge="judge:follow:' in metrics and "astune_follow_trusted" in metrics


@pytest.mark.fault(
    "Online training",
    "The judge of what users said next fails",
    "It is counted, asked again three times at most, and gives no reward",
)
async def test_a_judge_that_fails_is_asked_again_and_gives_no_reward(world: World) -> None:
    talk(world, "a", "2+2?", "5", "No.", "4")
    judge = judge_of(world, "fails")
    for _ in range(6):
        await judge.judge_due()
        world.now += 10
    assert len(SEEN) == 3 and judged(world) == []


def rate_some(world: World, right: Sequence[bool], start: int = 0) -> None:
    """Users whose thumbs agree with what they say next, or do not."""
    for number, agrees in enumerate(right, start):
        liked = number % 2 == 0
        user = f"user {number}"
        talk(world, f"t{number}-", "2+2?", "4", "+" if liked == agrees else "No.", "5", user=user)
        world.say(float(liked), about=[f"t{number}-0"], author=user)


def settled(world: World) -> Mapping[str, str]:
    """The states of what the judge says of conversations without a thumb."""
    with world.database.writing() as connection:
        settle(connection, world.config.astune.online.feedback, world.now)
        (figures,) = follow_figures(connection, FeedbackConfig())
        lines = [line.what for line in audit.lines(connection, subjects=[figures.author])]
    rows = {row["id"]: row for row in world.rows(feedback) if row["author"].startswith("judge:")}
    free = [row["state"] for row in rows.values() if row["state"] in ("counts", "held")]
    return {"states": " ".join(sorted(set(free))), "audit": " ".join(lines), "trusted": str(figures.trusted)}


async def test_a_judge_that_disagrees_with_people_is_held_until_it_agrees_again(any_world: World) -> None:
    world = any_world
    judge = judge_of(world, least_compared=12)
    talk(world, "free", "1+1?", "2", "+", "ok", user="zoe")
    await judge.judge_due()
    assert settled(world) == {"states": "counts", "audit": "", "trusted": "True"}
    rate_some(world, [False] * 12)
    await judge.judge_due()
    assert settled(world) == {"states": "held", "audit": DISTRUSTED, "trusted": "False"}
    assert settled(world)["audit"] == DISTRUSTED
    rate_some(world, [True] * 36, start=12)
    await judge.judge_due()
    assert settled(world) == {"states": "counts", "audit": f"{DISTRUSTED} {TRUSTED}", "trusted": "True"}


async def test_one_user_s_thumbs_make_no_judge_trusted(world: World) -> None:
    judge = judge_of(world, least_compared=8)
    for number in range(20):
        talk(world, f"t{number}-", "2+2?", "4", "No.", "5", user="mallory")
        world.say(1.0, about=[f"t{number}-0"], author="mallory")
    await judge.judge_due()
    settled(world)
    with world.database.reading() as connection:
        (figures,) = follow_figures(connection, FeedbackConfig())
    assert figures.compared == 5


async def test_a_user_who_praises_everything_is_held_as_far_off(any_world: World) -> None:
    world = any_world
    for number in range(12 * 10):
        who = f"user {number % 12}"
        talk(world, f"h{number}-", "2+2?", "4", "No." if number // 12 % 10 else "+", "5", user=who)
    for number in range(20):
        talk(world, f"m{number}-", "2+2?", "5", "Great answer!!! +", "5", user="mallory")
    judge = judge_of(world)
    assert (await judge.judge_due()).scored == 140
    settled(world)
    held = [row for row in world.rows(feedback) if row["state"] == "held"]
    assert len(held) == 20 and all("far off" in row["reason"] for row in held)
    assert math.isclose(sum(one.reward or 0.0 for one in judged(world)), 12.0)
