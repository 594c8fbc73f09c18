"""The judge by plain words."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from astune.config.online import FollowConfig
from astune.online.follow.followed import Followed
from astune.online.follow.rules import RulesOfFollowing
from astune.online.follow.verdict import FollowVerdict
from tests.rows import each_row

Kind = Literal["message", "retry", "edit", "corrected", "silence"]
ASKED = "Ben has 5 pens. Omar gives Ben 2 more. How many pens does Ben have now?"


def vote(said: str, kind: Kind = "message", **keys: Any) -> FollowVerdict:
    rules = RulesOfFollowing(FollowConfig.model_validate({"judge": "rules", **keys}))
    return asyncio.run(rules.judge(Followed(kind, ASKED, "8", (), said)))


@each_row(
    "said, expected",
    [
        ("Thanks!", 1),
        ("THANK YOU, that\u2019s right.", 1),
        ("谢谢,我明白了", 1),
        ("That is wrong.", -1),
        ("这不对", -1),
        ("thanks, but that is wrong", -1),
        ("No thanks.", 0),
        ("Thanks for nothing.", -1),
        ("There is nothing wrong with it.", 0),
        ("Is it greater than 9?", 0),
        ("What is the weather like?", 0),
        ("", 0),
        (ASKED, -1),
        (ASKED.lower().replace("?", " ?"), -1),
        ("How many pens does Ben have now, if Omar gives Ben 2 more and Ben has 5 pens?", -1),
        (ASKED.replace("5", "6"), 0),
        ("And Omar?", 0),
    ],
)
def test_words_of_the_next_message_and_whether_it_asks_the_same_tell(said: str, expected: int) -> None:
    assert vote(said).vote == expected


@each_row(
    "kind, said, keys, expected",
    [
        ("retry", ASKED, {}, -1),
        ("edit", ASKED.replace("now", "today"), {}, -1),
        ("edit", "What is the capital of Peru?", {}, 0),
        ("corrected", "Ben has 7.", {}, -1),
        ("silence", "", {}, 0),
        ("silence", "", {"signs": {"silence": 1}}, 1),
        ("retry", ASKED, {"signs": {"retry": 0}}, 0),
        ("message", "Nope.", {"words": {"nope": -1}}, -1),
        ("message", "Thanks!", {"words": {"Thanks": 0}}, 0),
        ("message", ASKED, {"signs": {"repeat": 0}}, 0),
    ],
)
def test_signs_tell_too_and_both_tables_can_be_changed(
    kind: Kind, said: str, keys: dict[str, Any], expected: int
) -> None:
    assert vote(said, kind, **keys).vote == expected


def test_a_reason_quotes_the_table_alone_and_a_hint_is_what_was_wanted() -> None:
    found = vote("That is wrong, Anna Miller. It should be 7 pens.")
    assert found == FollowVerdict(-1, "the user says 'it should be'", "It should be 7 pens.")
    assert vote("Ben has 7.", "corrected").hint == "Ben has 7."
    assert vote("That is wrong.").hint is None
