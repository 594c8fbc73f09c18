import json
from typing import Any

import pytest

from astune.config.online import FeedbackConfig
from astune.online.service.feedback import read_feedback
from astune.online.store.feedback.states import NewFeedback
from astune.online.wire import WireError
from tests.rows import each_row

RULES = FeedbackConfig(rewards={"a": 1.0, "b": 0.5})


def read(body: Any, client: str = "", rules: FeedbackConfig = RULES) -> NewFeedback:
    return read_feedback(body, client=client, received=7.0, rules=rules)


@each_row(
    ("body", "said"),
    [
        ({"reward": 0.8}, [("number", "reward", 0.8, None)]),
        ({"reward": 1}, [("number", "reward", 1.0, None)]),
        ({"rewards": {"a": 0.5, "b": 0.25}}, [("number", "a", 0.5, None), ("number", "b", 0.25, None)]),
        ({"thumb": "up"}, [("thumb", "reward", 1.0, None)]),
        ({"thumb": "down", "reward": None}, [("thumb", "reward", 0.0, None)]),
        ({"rating": 1}, [("rating", "reward", 0.0, None)]),
        ({"rating": 4}, [("rating", "reward", 0.75, None)]),
        ({"rating": 5}, [("rating", "reward", 1.0, None)]),
        ({"correction": "so"}, [("correction", "correction", None, "so")]),
        (
            {"thumb": "down", "correction": "so", "better": "n", "worse": "m"},
            [
                ("thumb", "reward", 0.0, None),
                ("correction", "correction", None, "so"),
                ("preference", "preference", None, None),
            ],
        ),
    ],
)
def test_everything_that_can_be_said_is_read(body: dict[str, Any], said: list[tuple[Any, ...]]) -> None:
    new = read({"msg_ids": ["m", "m"], **body})
    assert [(one.kind, one.name, one.value, one.correction) for one in new.parts] == said
    assert new.msg_ids == ("m",)


def test_the_author_is_the_user_else_the_client() -> None:
    assert read({"msg_ids": ["m"], "reward": 1, "user": "ana"}, "app").author == "ana"
    assert read({"msg_ids": ["m"], "reward": 1}, "app").author == "app"
    assert read({"msg_ids": ["m"], "reward": 1}).author == ""


@each_row(
    ("text", "said", "param"),
    [
        ('{"msg_ids": ["m"], "reward": 1.5}', "1.5 is not between 0 and 1", "reward"),
        ('{"msg_ids": ["m"], "rewards": {"a": -0.1}}', "-0.1 is not between 0 and 1", "rewards.a"),
        ('{"msg_ids": ["m"], "reward": 1' + "0" * 400 + "}", "reward", "reward"),
        ('{"msg_ids": ["m"], "rewards": {"bb": 1}}', "it has 'a', 'b'. Did you mean 'b'?", "rewards.bb"),
        ('{"msg_ids": ["m"], "rewards": {"reward": 1}}', "without a name", "rewards.reward"),
        ('{"msg_ids": ["m"], "reward": 1, "user": "judge:me"}', "name of a judge", "user"),
        ('{"msg_ids": ["m"], "reward": 1, "comment": "a\\u0000b"}', "a character that is none", "comment"),
        ('{"msg_ids": ["m\\ud800"], "reward": 1}', "", "msg_ids[0]"),
        ('{"msg_ids": ["m"], "rewards": {"a\\u0000": 1}}', "a character that is none", "rewards.a\x00"),
    ],
)
def test_what_is_no_feedback_says_which_key_is_wrong(text: str, said: str, param: str) -> None:
    with pytest.raises(WireError) as error:
        read(json.loads(text))
    assert said in str(error.value)
    assert error.value.param == param


def test_bounds_are_those_of_the_configuration() -> None:
    rules = FeedbackConfig(least=-1, most=2)
    assert read({"msg_ids": ["m"], "reward": -0.5}, rules=rules).parts[0].value == -0.5
    with pytest.raises(ValueError, match="least 1 must be below most 1"):
        FeedbackConfig(least=1)
