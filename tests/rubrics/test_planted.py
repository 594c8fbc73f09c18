"""The planted world keeps what it promises: labels follow the planted features, and the API that plays the language
model sees answers, not labels."""

import json
from collections import Counter
from statistics import mean
from typing import Any

import pytest

from astune.rubrics.prompts import (
    ShownAnswer,
    arrange_messages,
    holistic_messages,
    propose_messages,
    revise_messages,
)
from astune.task_judge.llm.pointwise import CriteriaReply, check_scores, rubric_messages
from astune.task_judge.llm.rubric import Criterion, Rubric
from astune.testing import Faults, PlantedWorld
from astune.testing.planted_features import FEATURES, VAGUE, features_of, meaning
from astune.testing.planted_rubrics import Kind, PlantedModel, meanings
from tests.rows import each_row

FEATURE = {feature.name: feature for feature in FEATURES}
GOOD = "Dear Ms Costa, the sum is EUR 12.50. Your next step is to reply with a photo."
BAD = "We are sorry for this. All will be well!"


def ask(model: PlantedModel, messages: list[dict[str, Any]]) -> Any:
    reply = model({"messages": messages})
    assert isinstance(reply, str), reply
    return json.loads(reply)


def rubric_of(*texts: str, scale: str = "binary") -> Rubric:
    criteria = [Criterion.model_validate({"id": f"c{n}", "text": text, "scale": scale}) for n, text in enumerate(texts)]
    return Rubric(name="r", criteria=tuple(criteria))


def proposal(model: PlantedModel, count: int = 6, better: str = GOOD, worse: str = BAD) -> list[str]:
    shown = [ShownAnswer("better", "Where is it?", better), ShownAnswer("worse", "Where is it?", worse)]
    reply = ask(model, propose_messages(shown, [], count, "binary", ""))
    return [entry["text"] for entry in reply["criteria"]]


# Features


@each_row("feature", FEATURES, ids=lambda feature: feature.name)
def test_each_sentence_has_its_own_feature_and_no_other(feature: Any) -> None:
    for sentence in feature.sentences:
        text = sentence.format(name="Ms Costa", order=12345, day="Friday", amount="10.50")
        expected = {feature.name} ^ {name for name, other in FEATURE.items() if other.by_absence} | {"short"}
        assert features_of(text) == expected


def test_each_wording_means_its_feature_alone() -> None:
    wordings = [(wording, feature) for feature in FEATURES for wording in feature.wordings]
    assert len({wording for wording, _ in wordings}) == len(wordings)
    for wording, feature in wordings:
        assert meaning(wording) is feature
        assert meaning(wording.upper().rstrip(".")) is feature
    assert [text for text in VAGUE if meaning(text)] == []


# Labels


def test_scored_labels_are_what_the_planted_features_say_and_half_are_good() -> None:
    for seed in range(6):
        world = PlantedWorld(seed, 40, noise=0.0)
        assert len(world.planted) in {3, 4}
        assert [row["score"] for row in world.examples] == [
            int(world.true_label(row["answer"]) > 0.5) for row in world.examples
        ]
        assert sum(row["score"] for row in world.examples) == 20


@pytest.mark.parametrize("kind", ["paired", "ranked"])
def test_answers_are_ordered_by_the_planted_features(kind: Kind) -> None:
    for row in PlantedWorld(1, 30, kind, noise=0.0).examples:
        worths = [PlantedWorld(1, 0).true_label(answer) for answer in answers_of(row)]
        assert worths == sorted(set(worths), reverse=True)


def answers_of(row: dict[str, Any]) -> list[str]:
    return row["answers"] if "answers" in row else [row["chosen"], row["rejected"]]


def test_planted_features_may_be_named() -> None:
    world = PlantedWorld(0, 20, planted=["reason", "next_step", "no_apology"])
    assert world.planted == {"reason", "next_step", "no_apology"}
    assert world.true_label("It is late because of the depot. The next step is ours.") == 1.0
    with pytest.raises(ValueError, match="no feature 'resaon'"):
        PlantedWorld(0, 20, planted=["resaon"])


def test_a_world_is_the_same_every_time() -> None:
    assert PlantedWorld(3, 10, "ranked").examples == PlantedWorld(3, 10, "ranked").examples
    assert PlantedWorld(3, 10).planted == PlantedWorld(3, 10).planted
    assert len({PlantedWorld(seed, 0).planted for seed in range(10)}) > 7


def test_what_a_rubric_finds_are_planted_features_that_it_weighs() -> None:
    world = PlantedWorld(0, 0, planted=["reason", "link", "list"])
    rubric = rubric_of(FEATURE["reason"].wordings[1], FEATURE["greeting"].wordings[0], VAGUE[0])
    unweighted = Criterion(id="x", text=FEATURE["link"].wordings[0], weight=0.0)
    assert world.finds(Rubric(name="r", criteria=(*rubric.criteria, unweighted))) == {"reason"}


# The API


def test_proposals_are_mostly_of_what_tells_the_answers_apart() -> None:
    telling = features_of(GOOD) - features_of(BAD)
    texts = [text for n in range(100) for text in proposal(PlantedModel(hint="link"), 3, GOOD + " So." * n)]
    means = Counter(feature.name if (feature := meaning(text)) else "" for text in texts)
    assert 0.6 < sum(means[name] for name in telling) / len(texts) < 0.8
    assert means[""] > 0
    assert len(set(texts)) > 15  # in several wordings


def test_a_revision_does_not_repeat_criteria_in_play() -> None:
    in_play = {str(n): FEATURE[name].wordings[0] for n, name in enumerate(("greeting", "amount"))}
    shown = [ShownAnswer("better", "q", GOOD), ShownAnswer("worse", "q", BAD)]
    model = PlantedModel(hint="link")
    reply = ask(model, revise_messages(in_play, shown, "it said worse", 5, "binary", ""))
    found = meanings(entry["text"] for entry in reply["criteria"])
    assert found & {"next_step", "no_apology", "no_exclamation"}
    assert not found & {"greeting", "amount"}


@pytest.mark.parametrize(("scale", "most"), [("binary", 1), ("scaled", 4)])
def test_answers_are_judged_by_what_the_criteria_mean(scale: str, most: int) -> None:
    rubric = rubric_of(FEATURE["amount"].wordings[2], FEATURE["link"].wordings[0], scale=scale)
    reply = ask(PlantedModel(hint="link"), rubric_messages(rubric, "q", GOOD, None, ""))
    assert check_scores(rubric, CriteriaReply.model_validate(reply)) == {"c0": most, "c1": 0}


def test_the_judge_without_criteria_is_better_than_chance_and_far_from_right() -> None:
    right = []
    for seed in range(12):
        world, model = PlantedWorld(seed, 40, "paired", noise=0.0), PlantedWorld(seed, 0).model()
        for row in world.examples:
            scores = [ask(model, holistic_messages(row["query"], a, None, ""))["score"] for a in answers_of(row)]
            right.append((scores[0] > scores[1]) + 0.5 * (scores[0] == scores[1]))
    assert 0.55 < mean(right) < 0.75


@pytest.mark.parametrize("scale", ["binary", "scaled"])
def test_every_criterion_gets_a_theme_and_anchors_where_they_are_asked_for(scale: str) -> None:
    texts = {"a": FEATURE["amount"].wordings[0], "b": VAGUE[0], "c": FEATURE["reason"].wordings[0]}
    reply = ask(PlantedModel(hint="link"), arrange_messages(texts, scale))
    assert {theme["theme"]: theme["criteria"] for theme in reply["themes"]} == {"Facts": ["a", "c"], "Overall": ["b"]}
    assert set(reply.get("anchors", {})) == (set(texts) if scale == "scaled" else set())


def test_replies_depend_on_the_request_and_not_on_those_before_it() -> None:
    one, other = (PlantedModel(hint="link", judge_noise=0.2) for _ in range(2))
    answers = [f"{GOOD} {n}" for n in range(20)]
    forward = [proposal(one, 3, answer) for answer in answers]
    backward = [proposal(other, 3, answer) for answer in reversed(answers)]
    assert forward == backward[::-1]
    assert len({tuple(texts) for texts in forward}) > 10


# Faults


def test_replies_can_break_off_lack_a_criterion_or_repeat_one() -> None:
    rubric = rubric_of(FEATURE["amount"].wordings[0], FEATURE["link"].wordings[0])
    messages = rubric_messages(rubric, "q", GOOD, None, "")
    with pytest.raises(json.JSONDecodeError):
        ask(PlantedModel(hint="link", faults=Faults(malformed=1.0)), messages)
    missing = ask(PlantedModel(hint="link", faults=Faults(missing=1.0)), messages)
    assert [entry["id"] for entry in missing["criteria"]] == ["c0"]
    faults = Faults(repeated=1.0)
    assert [e["id"] for e in ask(PlantedModel(hint="link", faults=faults), messages)["criteria"]] == ["c0", "c1", "c0"]
    texts = proposal(PlantedModel(hint="link", faults=faults), 3)
    assert len(texts) == 4 and texts[0] == texts[3]
