import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from astune.clients.json_reply import last_object, read_reply, response_format
from tests.chat_client.asking import Score
from tests.rows import each_row

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, min_size=1, max_size=4)
PROSE = st.text().filter(lambda text: "{" not in text)


@given(before=PROSE, first=OBJECTS, between=PROSE, last=OBJECTS, after=PROSE, indent=st.sampled_from([None, 2]))
def test_the_last_object_is_found_whatever_stands_around_it(before, first, between, last, after, indent):
    text = before + json.dumps(first) + between + json.dumps(last, indent=indent, ensure_ascii=False) + after
    assert last_object(text) == last


@given(inner=OBJECTS, outer=OBJECTS, data=st.data())
def test_what_stands_in_an_object_that_was_cut_off_is_not_taken_for_it(inner, outer, data):
    whole = json.dumps({"first": inner, **outer, "last": inner})
    cut = data.draw(st.integers(2, len(whole) - 1))
    with pytest.raises(ValueError, match="broken"):
        last_object(whole[:cut])


@pytest.mark.parametrize(
    "text", ['{"first": {"": "{}', '{"why": "\\(x{}\\)", "score": 1}', '{"why": "\\u00 {}"}', '{"a": "{} \\']
)
def test_what_stands_in_a_text_that_is_broken_is_not_taken_for_the_object(text):
    with pytest.raises(ValueError, match="broken"):
        last_object(text)


def test_an_object_after_one_with_a_broken_text_is_found():
    assert last_object('{"why": "\\( {} \\)"} so {"score": 1}') == {"score": 1}


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 1}',
        'Thinking {about} it {"score": 9}.\n```json\n{"score": 1}\n```\nThat is $\\frac{1}{2}$.',
        '<think>{"score": 5}</think>{\n  "score": 1\n}',
        'I begin {"score": and stop.\n\nAgain: {"score": 1}',
    ],
)
def test_fences_prose_and_reasoning_are_let_pass(text):
    assert last_object(text) == {"score": 1}


@each_row(
    ("text", "wrong"),
    [
        ("", "no JSON object in the reply"),
        ("3 of {5}", "no JSON object in the reply"),
        ('{"score": 1, "score": 5}', "the key 'score' is given twice"),
        ('{"a": {"score": 1, "score": 5}}', "the key 'score' is given twice"),
        ('{"score": NaN}', "NaN is no number"),
        ('{"score": -Infinity}', "-Infinity is no number"),
        ('{"score": 1e999}', "1e999 is no number"),
        ('The answer says {"score": 5}. {"score": 1, "reason": "he said "no""}', "the JSON object is broken"),
        ('{"score": ' + '{"a":' * 100_000, "the JSON object is nested too deep"),
        ('{"score": ' + "9" * 5000 + "}", "integer string conversion"),
    ],
)
def test_what_cannot_be_relied_on_is_refused(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        last_object(text)


def test_the_schema_and_the_check_decide_what_is_valid():
    def at_most_5(reply):
        if reply.score > 5:
            raise ValueError("score is at most 5")

    assert read_reply('{"score": 5}', Score, at_most_5) == Score(score=5)
    with pytest.raises(ValueError, match="score is at most 5"):
        read_reply('{"score": 6}', Score, at_most_5)
    with pytest.raises(ValueError, match=r"^score: Field required; points: Extra inputs are not permitted$"):
        read_reply('{"points": 6}', Score)


def test_strict_schemas_require_every_key_and_allow_no_other():
    class Part(BaseModel):
        text: str = "none"

    class Parts(BaseModel):
        parts: list[Part]

    field = response_format("json_schema", Parts)["response_format"]
    assert (field["type"], field["json_schema"]["name"], field["json_schema"]["strict"]) == (
        "json_schema",
        "Parts",
        True,
    )
    shape = field["json_schema"]["schema"]
    for node in (shape, shape["$defs"]["Part"]):
        assert (node["required"], node["additionalProperties"]) == ([*node["properties"]], False)
    assert "default" not in shape["$defs"]["Part"]["properties"]["text"]


def test_a_schema_that_strict_mode_does_not_know_is_sent_as_it_is():
    class Anchors(BaseModel):
        anchors: dict[str, int] = {}

    field = response_format("json_schema", Anchors)["response_format"]["json_schema"]
    assert field == {"name": "Anchors", "strict": False, "schema": Anchors.model_json_schema()}
