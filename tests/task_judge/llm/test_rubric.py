"""The file of a rubric: what is written is read, and what is wrong is said with its line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.errors import ConfigError
from astune.task_judge.llm.rubric import Criterion, Rubric, load_rubric, save_rubric
from tests.rows import each_row

FEE = Criterion(id="fee", theme="Facts", text="The answer names the fee: all of it", weight=0.75, sources=("q1", "q2"))
TONE = Criterion(id="tone", text="Is polite", scale="scaled", anchors={0: "rude", 4: "no: warm"}, edited=True)
RUBRIC = Rubric(name="support", criteria=(FEE, TONE))

words = st.text(min_size=1, max_size=30)
ids = st.from_regex(r"[\w#:-][\w #:-]{0,20}", fullmatch=True)


@st.composite
def criteria(draw, name):
    low = draw(st.integers(-3, 3))
    high = draw(st.integers(low + 1, low + 10))
    scale = {"scale": "scaled", "min": low, "max": high} if draw(st.booleans()) else {"scale": "binary"}
    anchors = draw(st.dictionaries(st.integers(low, high), words)) if scale["scale"] == "scaled" else {}
    weight = draw(st.floats(0.01, 100))
    sources = tuple(draw(st.lists(words, max_size=3)))
    edited = draw(st.booleans())
    return Criterion(id=name, text=draw(words), weight=weight, anchors=anchors, sources=sources, edited=edited, **scale)


@settings(max_examples=50)
@given(criteria("a"), criteria("b c"), ids, words)
def test_a_rubric_that_is_written_is_read_back(tmp_path_factory, one, two, third, name):
    several = (one, two, one.model_copy(update={"id": f"_{third}"}))
    rubric = Rubric(name=name, criteria=several, provenance={"seed": 1, "model": name}, report={"test": {"n": 3}})
    path = tmp_path_factory.mktemp("rubric") / "rubric.yaml"
    save_rubric(rubric, path)
    assert load_rubric(path) == rubric


def test_the_file_is_for_people(tmp_path: Path):
    save_rubric(RUBRIC, tmp_path / "new" / "rubric.yaml")
    text = (tmp_path / "new" / "rubric.yaml").read_text()
    assert text.startswith("# A rubric: ")
    assert text.partition("schema:")[2] == (
        " astune.rubric/1\nname: support\ncriteria:\n"
        "- id: fee\n  theme: Facts\n  text: 'The answer names the fee: all of it'\n  weight: 0.75\n  scale: binary\n"
        "  sources:\n  - q1\n  - q2\n"
        "- id: tone\n  text: Is polite\n  weight: 1.0\n  scale: scaled\n  min: 0\n  max: 4\n"
        "  anchors:\n    0: rude\n    4: 'no: warm'\n  edited: true\n"
        "provenance: {}\nreport: {}\n"
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rubric.yaml"]


def test_the_digest_is_of_what_judging_depends_on():
    same = Rubric(name="other", criteria=(FEE.model_copy(update={"theme": "", "sources": (), "edited": True}), TONE))
    assert same.digest == RUBRIC.digest
    for change in ({"text": "x"}, {"weight": 0.5}, {"id": "x"}):
        assert Rubric(criteria=(FEE.model_copy(update=change), TONE)).digest != RUBRIC.digest
    for change in ({"max": 5}, {"min": -1}, {"anchors": {}}):
        assert Rubric(criteria=(FEE, TONE.model_copy(update=change))).digest != RUBRIC.digest
    assert Rubric(criteria=(TONE, FEE)).digest != RUBRIC.digest


def test_a_report_of_other_criteria_is_told_not_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "rubric.yaml"
    save_rubric(RUBRIC.model_copy(update={"provenance": {"digest": RUBRIC.digest}}), path)
    load_rubric(path)
    assert not caplog.messages
    path.write_text(path.read_text().replace("Is polite", "Is very polite"))
    assert load_rubric(path).criteria[1].text == "Is very polite"
    assert caplog.messages == [
        f"{path}: the criteria were edited since the report in it was written: it is of the old ones"
    ]


HEAD = "schema: astune.rubric/1\nname: x\ncriteria:\n"


@each_row(
    ("text", "said"),
    [
        (HEAD + "- id: a\n  text: b\n  wieght: 1\n", ":6: criteria[a].wieght: no such key. Did you mean 'weight'?"),
        (HEAD + "- id: a\n  text: b\n  weight: -1\n", ":6: criteria[a].weight: expected greater than or equal to 0"),
        (HEAD + "- id: a\n  text: b\n  weight: .nan\n", ":6: criteria[a].weight: expected a finite number"),
        (HEAD + "- id: a\n  text: b\n  weight: true\n", ":6: criteria[a].weight: expected a value other than true"),
        (HEAD + "- id: a\n  text: b\n  weight: 0\n", ":3: criteria: expected at least one weight above 0"),
        (HEAD + "- id: a\n  text: b\n  max: 3\n", ":6: criteria[a].max: expected min 0 and max 1 with scale 'binary'"),
        (HEAD + "- id: a\n  text: b\n  scale: scald\n", ":6: criteria[a].scale: expected 'binary' or 'scaled', got"),
        (HEAD + "- {id: a, text: b, scale: scaled,\n  min: 4}\n", ":4: criteria[a].max: expected a number above min 4"),
        (
            HEAD + "- id: a\n  text: b\n  scale: scaled\n  anchors:\n    5: best\n",
            ":7: criteria[a].anchors: expected scores from 0 to 4",
        ),
        (HEAD + "- id: a\n  text: b\n- text: c\n", ":6: criteria[2].id: missing"),
        (HEAD + "- {id: a, text: b}\n- {id: a, text: c}\n", "criteria with an id of their own; 'a' stands twice"),
        (HEAD + "- {id: a|b, text: b}\n", "expected a name in one line without '|', got 'a|b'"),
        (HEAD + "- id: a\n  text: b\n  text: c\n", ":6: text: stands twice, first in line 5"),
        (HEAD + "- nothing\n", ":4: criteria[1]: expected a section of keys and values, got 'nothing'"),
        ("schema: astune.rubric/1\nname: x\ncriteria: []\n", ":3: criteria: expected at least one"),
        ("schema: astune.rubric/1\ncriteia: []\n", ":2: criteia: no such key. Did you mean 'criteria'?"),
        ("schema: astune.rubric/9\n", ":1: schema: expected astune.rubric/1, found 'astune.rubric/9'"),
        ("name: x\n", ":1: schema: expected astune.rubric/1, found nothing"),
        ("a: [1\n", "not valid YAML"),
        ("", "expected a rubric: schema, name and criteria"),
        ("- a\n", "expected a rubric: schema, name and criteria"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text, said):
    path = tmp_path / "rubric.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_rubric(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.fault("Rubrics", "a rubric file has mistakes", "all are said at once, with their places")
def test_all_that_is_wrong_is_said_at_once(tmp_path: Path):
    path = tmp_path / "rubric.yaml"
    path.write_text(HEAD + "- id: a\n  text: ''\n  weight: x\n")
    with pytest.raises(ConfigError, match=r"2 errors\n  .*:5: criteria\[a\]\.text: .*\n  .*:6: criteria\[a\]"):
        load_rubric(path)


def test_a_missing_file_names_the_nearest(tmp_path: Path):
    (tmp_path / "rubric.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"no such file\. Did you mean 'rubric.yaml'\?"):
        load_rubric(tmp_path / "rubics.yaml")
