"""`astune.evaluate`, `astune.judge` and `astune.learn_rubric`, and the model that `Run.model` hands over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import astune
from astune.errors import AstuneError, ConfigError, JudgeError, PluginError, TaskError
from astune.task_judge.llm.rubric import load_rubric
from astune.testing import PlantedWorld
from tests.api.agents import ask, first_is_best
from tests.rows import each_row

ROWS = [{"query": f"What is {n} + 2?", "answer": str(n + 2)} for n in range(6)]
SMALL: dict[str, Any] = {"rollout": {"max_tokens": 4}, "monitor": {"progress": "off", "trackers": []}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_gives_a_model_that_transformers_load_and_evaluate_compares() -> None:
    transformers = pytest.importorskip("transformers")
    trainer = {"total_steps": 1, "tasks_per_step": 2}
    run = astune.tune(ask, tasks=ROWS, judge=first_is_best, trainer=trainer, **SMALL, **{"model.lora.rank": 4})
    assert run.model == run.model and not (run.model / "adapter_config.json").exists()  # merged, and written once
    assert transformers.AutoModelForCausalLM.from_pretrained(run.model).num_parameters() > 0

    played: list[str] = []

    def judge(task: dict[str, Any], response: str) -> bool:
        played.append(response)
        return response == task["answer"]

    given = {"models": ["none", run.model], "evaluation.decoding": ["greedy"], **SMALL}
    found = astune.evaluate(ask, ROWS, judge, **given)
    assert found["base"]["greedy"]["success"].n == len(ROWS) and len(played) == 2 * len(ROWS)
    (compared,) = found.compared
    assert (compared.first, compared.second) == ("base", run.model.name)
    assert [each["name"] for each in found.as_dict()["evaluated"]] == ["base", run.model.name]
    assert "against base, on the same tasks" in str(found) and str(found.folders[0].name) == "base"
    assert found._repr_html_().startswith("<pre>")
    assert str(astune.evaluate(ask, ROWS, judge, **given)) == str(found) and len(played) == 2 * len(ROWS)
    again = astune.tune(ask, tasks=ROWS, judge=first_is_best, model=run, trainer=trainer, **SMALL)
    assert [one.name for one in astune.evaluate(ask, ROWS, judge, models=[run, again], **SMALL).models] == [
        "ask_step_000001",
        "ask-2_step_000001",
    ]


def test_tasks_that_are_given_are_played_in_place_of_all_that_a_file_names() -> None:
    Path("held.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    reader = {"jsonl": {"training": {"file_path": "none.jsonl"}, "validation": {"file_path": "held.jsonl"}}}
    evaluation = {"decoding": ["greedy"], "sets": {"more": {"file_path": "held.jsonl"}}}
    config = {"task_reader": reader | {"max_training_tasks": 2}, "evaluation": evaluation, **SMALL}
    Path("job.yaml").write_text(json.dumps({"astune": config}))
    for tasks in ("held.jsonl", ROWS):
        (one,) = astune.evaluate(ask, tasks, first_is_best, conf="job.yaml").models
        assert {name: counts["tasks"] for name, counts in one.counts.items()} == {"greedy": len(ROWS)}


@each_row(
    ("models", "words"),
    [
        ([], "models: expected one, or more to compare with the first"),
        ([3], "models: got 3; expected a folder, a hub id, a Run"),
    ],
)
def test_what_is_no_model_is_said(models: list[Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        astune.evaluate(ask, ROWS, first_is_best, models=models)
    assert words in str(caught.value), str(caught.value)


def right(task: dict[str, Any], response: str) -> bool:
    return response == task["answer"]


def unsure(task: dict[str, Any], response: str) -> bool:
    raise JudgeError("nobody knows")


@each_row(
    ("judge", "answer", "reward"),
    [
        (right, "42", 1.0),
        (right, "41", 0.0),
        ("MathAnswerAsJudge", "The answer is 42.", 1.0),
        (lambda task, episode: len(episode.output.answer), "abc", 3.0),
        ([{"judge": right, "weight": 2.0}, {"judge": "MathAnswerAsJudge", "weight": 1.0}], "42", 3.0),
    ],
)
def test_a_judge_is_asked_about_an_answer(judge: Any, answer: str, reward: float) -> None:
    for task in (
        {"query": "6 * 7?", "answer": "42"},
        astune.Task("1", "6 * 7?", answer="42", metadata={"answer": "42"}),
    ):
        assert astune.judge(judge, task, answer).reward == reward


@each_row(
    ("judge", "task", "kind", "words"),
    [
        (unsure, ROWS[0], JudgeError, "nobody knows"),
        (None, ROWS[0], ConfigError, "judge: got None; expected a function"),
        (right, "6 * 7?", TaskError, "task: got '6 * 7?' of type str; expected a dict or a Task"),
        (right, {"qery": "6 * 7?"}, TaskError, "task"),
        (lambda answer: 1.0, ROWS[0], PluginError, "unknown parameter 'answer'"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_an_error(judge: Any, task: Any, kind: type, words: str) -> None:
    with pytest.raises(AstuneError) as caught:
        astune.judge(judge, task, "42")
    assert (caught.type, words in str(caught.value)) == (kind, True), str(caught.value)


def test_a_rubric_is_learned_from_rows_as_from_their_file(capsys: pytest.CaptureFixture[str]) -> None:
    world = PlantedWorld(3, 16, noise=0.0, judge_noise=0.0)
    world.write_examples(Path("examples.jsonl"))
    rows = [json.loads(line) for line in Path("examples.jsonl").read_text().splitlines()]
    with world.server() as server:
        llm = {"models": [{"base_url": server.base_url, "model": "planted"}]}
        keys = {"rubrics": {"rounds": 1, "max_criteria": 4}, "task_judge": {"llm": llm}}
        rubric = astune.learn_rubric(rows, **keys)
        assert rubric.criteria == load_rubric(Path("rubrics.yaml")).criteria
        other = astune.learn_rubric("examples.jsonl", **keys, **{"rubrics.out": "other.yaml"})
    assert rubric.criteria == other.criteria and "/other.yaml" in capsys.readouterr().out


@each_row(
    ("examples", "words"),
    [
        ([{"query": "a", "answer": "b", "score": 1}], "examples: 1 examples, expected 5 to 100"),
        ([{"query": "a"}, "b"], "examples[1]: got 'b' of type str; expected a dict"),
        ({"query": "a"}, "expected a path or a list of dicts"),
        (None, "astune.rubrics.examples is not set"),
        ([{"question": "a", "answer": "b", "score": 1}] * 5, "examples[0]: unknown key 'question'"),
    ],
)
def test_examples_that_are_none_are_said(examples: Any, words: str) -> None:
    with pytest.raises(AstuneError) as caught:
        astune.learn_rubric(examples)
    assert words in str(caught.value), str(caught.value)
