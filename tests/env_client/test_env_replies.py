"""What counts as a reply, and what an agent is given of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.clients import env_replies
from astune.clients.env_replies import EnvState
from tests.rows import each_row

HELLO = {"role": "user", "content": "Hello"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
PARTS = {"role": "tool", "content": [{"type": "text", "text": "Hello"}], "tool_call_id": "1"}
TOOL = {"type": "function", "function": {"name": "move"}}


@each_row(
    ("state", "messages"),
    [
        ([HELLO, CALLS, PARTS], (HELLO, CALLS, PARTS)),
        (HELLO, (HELLO,)),
        ("Hello", (HELLO,)),
        ([[HELLO, PARTS]], (HELLO, PARTS)),
        ([["Hello"], "Hello"], (HELLO, HELLO)),
        ([], ()),
    ],
)
def test_a_state_becomes_messages(state, messages):
    assert env_replies.state({"data": {"state": state}}) == EnvState(messages)


def test_a_state_has_reward_end_and_tools():
    data = {"state": "Hello", "reward": 2, "is_terminated": True, "info": {"tools": [TOOL], "hint": 1}}
    expected = EnvState((HELLO,), 2.0, True, {"tools": [TOOL], "hint": 1})
    assert env_replies.state({"data": data}) == expected
    assert env_replies.state({"data": {"state": "Hello", "info": None}}).info == {}


@each_row(
    ("data", "expected"),
    [
        (None, 'expected {"data": {"state": messages'),
        ([], 'expected {"data": {"state": messages'),
        ({}, 'expected {"data": {"state": messages'),
        ({"state": None}, "expected messages for state, got None"),
        ({"state": 3}, "expected messages for state, got 3"),
        ({"state": [3]}, "expected messages with a role in state, got 3"),
        ({"state": [[[HELLO]]]}, "expected messages with a role in state"),
        ({"state": {"content": "Hello"}}, "expected messages with a role in state"),
        ({"state": {"role": "", "content": "Hello"}}, "expected messages with a role in state"),
        ({"state": {"role": "user"}}, "expected messages with a content in state"),
        ({"state": {"role": "user", "content": 3}}, "expected messages with a content in state"),
        ({"state": "Hello", "reward": None}, "expected a finite number for reward, got None"),
        ({"state": "Hello", "reward": "1"}, "expected a finite number for reward, got '1'"),
        ({"state": "Hello", "reward": True}, "expected a finite number for reward, got True"),
        ({"state": "Hello", "reward": float("inf")}, "expected a finite number for reward, got inf"),
        ({"state": "Hello", "reward": 10**400}, "expected a finite number for reward, got 1000"),
        ({"state": "Hello", "is_terminated": None}, "expected true or false for is_terminated, got None"),
        ({"state": "Hello", "is_terminated": 1}, "expected true or false for is_terminated, got 1"),
        ({"state": "Hello", "info": []}, r"expected an object for info, got \[\]"),
        ({"state": "Hello", "info": {"tools": {}}}, "expected a list of tools in info.tools"),
        ({"state": "Hello", "info": {"tools": [{"name": "move"}]}}, "expected a tool in OpenAI's shape in info.tools"),
    ],
)
def test_what_is_no_state_is_refused(data, expected):
    with pytest.raises(ValueError, match=expected):
        env_replies.state({"data": data})


@each_row("data", [None, "1", True, [1], {}, float("nan"), float("-inf"), 10**400])
def test_what_is_no_score_is_refused(data):
    with pytest.raises(ValueError, match="expected a finite number for data, the score"):
        env_replies.score({"data": data})


def test_a_score_is_a_finite_number():
    assert [env_replies.score({"data": data}) for data in (1, -0.5)] == [1.0, -0.5]


def test_task_ids_are_texts_or_numbers_under_either_name():
    assert env_replies.task_ids({"data": ["a", 7]}) == env_replies.task_ids({"task_ids": ["a", 7]}) == ["a", "7"]
    for reply in ({}, {"data": None}, {"data": "a"}, {"data": [None]}, {"data": [True]}, {"data": [1.5]}):
        with pytest.raises(ValueError, match="task ids"):
            env_replies.task_ids(reply)


def test_other_shapes_are_refused():
    for reply in ({}, {"data": None}, {"data": []}):
        with pytest.raises(ValueError, match=r'expected \{"data": \{...\}\}'):
            env_replies.description(reply)
    for reply in ({}, {"env_types": "game"}, {"env_types": [1]}):
        with pytest.raises(ValueError, match="env_types"):
            env_replies.env_types(reply)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["state", "reward", "is_terminated", "info", "tools", "role", "content"]), inner
        )
    ),
    max_leaves=8,
)


@pytest.mark.fault(
    "Tools and environments",
    "an environment service answers with any JSON",
    "it is either understood or refused with its place",
)
@given(JSON)
def test_any_data_is_either_a_state_or_refused(data):
    try:
        state = env_replies.state({"data": data})
    except ValueError:
        return
    assert all(message["role"] and "content" in message for message in state.messages)


@pytest.mark.fault(
    "Tools and environments", "an environment service answers with any bytes", "they are either JSON or refused"
)
@given(st.binary(max_size=30))
def test_any_bytes_are_either_json_or_refused(body):
    try:
        parsed = env_replies.parse(body)
    except ValueError:
        return
    assert parsed == json.loads(body.decode())
