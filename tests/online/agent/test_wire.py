"""The bodies between agent and service: what is read, and what is said of what is not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.online.wire import Commit, ConversationRecord, Feedback, WireError, read_wire
from tests.rows import each_row

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
MESSAGES = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "there"},
    {"role": "assistant", "content": "There."},
]


@each_row(
    "body",
    [
        {"msg_ids": ["id1", "id2"], "reward": 0.8, "task_id": "task-1", "run_id": "0"},  # the Java client
        {"msg_ids": ["id1"], "reward": 1, "task_id": "t"},  # Trinity's Python client
        {"msg_ids": ["id1"], "rewards": {"task_completion": 0.8, "user satisfaction": -0.6}},
        {"msg_ids": ["id1"], "thumb": "up", "user": "ana", "comment": "thanks"},
        {"msg_ids": ["id1"], "rating": 4, "comment": "right, but long", "correction": "42"},
        {"better": "id1", "worse": "id2"},
        {"msg_ids": ["id1"], "reward": 0.0, "rewards": None, "thumb": None, "run_id": 3},
    ],
)
def test_every_form_of_feedback_is_read_and_written_again(body: dict[str, Any]) -> None:
    read = read_wire(Feedback, body)
    assert read_wire(Feedback, json.loads(json.dumps(read.to_json()))) == read
    if body.get("run_id") is not None:
        assert read.run_id == str(body["run_id"])


@each_row(
    ("body", "said", "param"),
    [
        ([], "must be a JSON object", ""),
        ({"msg_ids": ["a"]}, "nothing that can be learned from", ""),
        ({"reward": 1.0}, "'msg_ids' is missing or empty", ""),
        ({"msg_ids": [], "thumb": "up"}, "'msg_ids' is missing or empty", ""),
        ({"msg_ids": ["a"], "reward": 1, "thumb": "up"}, "'reward' and 'thumb' are given", ""),
        ({"msg_ids": ["a"], "reward": True}, "'reward': input should be a valid number, got True", "reward"),
        ({"msg_ids": ["a"], "reward": "1"}, "'reward': input should be a valid number", "reward"),
        ({"msg_ids": ["a"], "reward": math.nan}, "'reward': input should be a finite number", "reward"),
        ({"msg_ids": ["a"], "rewards": {"x": math.inf}}, "'rewards.x': input should be a finite", "rewards.x"),
        ({"msg_ids": ["a", 1], "reward": 1}, "'msg_ids[1]': input should be a valid string, got 1", "msg_ids[1]"),
        ({"msg_ids": ["a"], "thumb": "Up"}, "'thumb': input should be 'up' or 'down', got 'Up'", "thumb"),
        ({"msg_ids": ["a"], "rating": 6}, "'rating': input should be less than or equal to 5, got 6", "rating"),
        ({"msg_ids": ["a"], "rateing": 5}, "'rateing' is no key of Feedback. Did you mean 'rating'?", "rateing"),
        ({"better": "a"}, "'better' is given alone", ""),
        ({"better": "a", "worse": "a"}, "the same answer", ""),
        ({"better": "a", "worse": "b", "correction": "so"}, "'msg_ids' is missing or empty", ""),
        ({"msg_ids": ["x" * 256], "reward": 1}, "at most 255 characters", "msg_ids[0]"),
    ],
)
def test_feedback_that_is_none_says_what_is_wrong(body: object, said: str, param: str) -> None:
    with pytest.raises(WireError) as caught:
        read_wire(Feedback, body)
    assert said in str(caught.value) and caught.value.param == param


def test_a_commit_may_be_empty_null_or_all_null() -> None:
    java = {"task_id": None, "run_id": None, "time_threshold": None}
    assert read_wire(Commit, None) == read_wire(Commit, {}) == read_wire(Commit, java) == Commit()
    with pytest.raises(WireError, match="'time_threshold': input should be a valid integer"):
        read_wire(Commit, {"time_threshold": 1.5})


def test_a_record_is_read_and_written_again() -> None:
    body = {
        "conversation_id": "conv_001",
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": {"name": "search", "parameters": {"default": None}}}],
        "thoughts": [{"step": 1, "content": "I need the search."}],
        "model": "gpt-4",
        "rewards": {"task_completion": 0.8, "efficiency": 0.6},
        "feedback": {"rating": 4, "comment": "exact"},
        "user": "ana",
        "task_id": "t",
        "run_id": 0,
    }
    read = read_wire(ConversationRecord, body)
    assert read.tools == body["tools"]
    assert read_wire(ConversationRecord, json.loads(json.dumps(read.to_json()))) == read


@each_row(
    ("change", "said"),
    [
        ({"messages": []}, "'messages': list should have at least 1 item"),
        ({"messages": MESSAGES[2:]}, "messages[0].tool_call_id 'c1' answers no call before it"),
        ({"messages": [{"role": "user"}]}, "messages[0]: 'content' is missing"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "'messages[0].role': input should be 'system', "),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: expected a text or a list of objects"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "only the assistant calls tools"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "a tool's message has a 'tool_call_id'"),
        ({"thoughts": [{"step": 3, "content": "x"}]}, "a thought of step 3, but the assistant has 2 messages"),
        ({"feedback": {"ratng": 4}}, "'feedback.ratng' is no key of ConversationRecord. Did you mean 'rating'?"),
        ({"conversation": "x"}, "'conversation' is no key of ConversationRecord. Did you mean 'conversation_id'?"),
    ],
)
def test_a_record_that_is_none_says_what_is_wrong(change: dict[str, Any], said: str) -> None:
    with pytest.raises(WireError) as caught:
        read_wire(ConversationRecord, {"conversation_id": "c", "messages": MESSAGES, **change})
    assert said in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([*Feedback.model_fields, *Commit.model_fields, *ConversationRecord.model_fields])


@given(
    st.one_of(JSON, st.dictionaries(KEYS, JSON, max_size=5)), st.sampled_from([Feedback, Commit, ConversationRecord])
)
def test_whatever_is_sent_is_a_body_or_an_error_that_says_why(value: Any, kind: Any) -> None:
    try:
        read_wire(kind, value)
    except WireError as error:
        assert str(error)
