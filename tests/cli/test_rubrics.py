"""`astune rubrics`: what it prints, and how it ends."""

from pathlib import Path

import pytest

from astune.cli import main
from astune.task_judge.llm.rubric import load_rubric, save_rubric
from astune.testing import PlantedWorld, ScriptedChatServer


def write_conf(folder: Path, base_url: str) -> Path:
    path = folder / "conf.yaml"
    path.write_text(
        "astune:\n"
        "  rubrics: {examples: examples.jsonl, rounds: 1}\n"
        f"  task_judge: {{llm: {{models: [{{base_url: '{base_url}', model: planted}}]}}}}\n"
    )
    return path


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    world = PlantedWorld(3, 16, noise=0.0, judge_noise=0.0)
    world.write_examples(tmp_path / "examples.jsonl")
    with world.server() as server:
        yield write_conf(tmp_path, server.base_url)


def test_learn_show_check_and_diff(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rubrics", "--conf", str(conf), "astune.rubrics.max_criteria=4"]) == 0
    learned = capsys.readouterr()
    assert "written: rubrics.yaml" in learned.out and "propose: " in learned.err
    rubric = load_rubric(Path("rubrics.yaml"))

    assert main(["rubrics", "show", "rubrics.yaml"]) == 0
    shown = capsys.readouterr().out
    words = shown.split()
    assert all(set(one.text.split()) <= set(words) for one in rubric.criteria)
    assert f"on {rubric.report['test']['n']} test examples" in shown and "judge without rubric" in shown

    assert main(["rubrics", "diff", "rubrics.yaml", "rubrics.yaml"]) == 0
    assert "no difference" in capsys.readouterr().out
    first, *others = rubric.criteria
    edited = rubric.model_copy(update={"criteria": (first.model_copy(update={"weight": 9.0}), *others[1:])})
    save_rubric(edited, Path("edited.yaml"))
    assert main(["rubrics", "diff", "rubrics.yaml", "edited.yaml"]) == 1
    differences = capsys.readouterr().out
    assert f"~ [{first.id}] weight: {first.weight} -> 9.0" in differences
    assert f"- {others[0].weight:g}  {others[0].text}" in differences.replace("\n", " ")

    assert main(["rubrics", "check", "edited.yaml"]) == 0
    checked = capsys.readouterr().out
    assert f"edited or added by hand: {first.id}" in checked and f"taken out by hand: {others[0].id}" in checked


def test_check_judges_labelled_examples(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rubrics", "learn", "--conf", str(conf)]) == 0
    before = Path("rubrics.yaml").read_bytes()
    other = PlantedWorld(3, 10, noise=0.0, judge_noise=0.0)
    other.write_examples(Path("other.jsonl"))
    capsys.readouterr()
    assert main(["rubrics", "check", "rubrics.yaml", "--conf", str(conf)]) == 0
    assert "it was learned from these examples" in capsys.readouterr().out.replace("\n", " ")
    assert main(["rubrics", "check", "rubrics.yaml", "--conf", str(conf), "--examples", "other.jsonl"]) == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "of 10 scored examples" in shown and "it was learned from these examples" not in shown
    assert Path("rubrics.yaml").read_bytes() == before


def test_an_edited_rubric_is_not_overwritten(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rubrics", "--conf", str(conf)]) == 0
    text = Path("rubrics.yaml").read_text()
    Path("rubrics.yaml").write_text(text.replace("scale: binary", "scale: binary\n  edited: true", 1))
    assert main(["rubrics", "--conf", str(conf)]) == 2
    assert "add --keep-edited" in capsys.readouterr().err
    assert main(["rubrics", "--conf", str(conf), "--keep-edited"]) == 0
    assert load_rubric(Path("rubrics.yaml")).criteria[0].edited


@pytest.mark.fault(
    "Rubrics", "the labels have nothing to do with the answers", "no better than the baselines is said, and ends with 3"
)
def test_shuffled_labels_give_a_rubric_that_is_no_better_than_the_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/rubrics/test_planted_pipeline.py has twenty seeds of the same, without the command."""
    monkeypatch.chdir(tmp_path)
    world = PlantedWorld(1, 60, shuffled_labels=True)
    world.write_examples(tmp_path / "examples.jsonl")
    with world.server() as server:
        write_conf(tmp_path, server.base_url)
        assert main(["rubrics", "--conf", "conf.yaml"]) == 3
    assert "no better than the baselines" in capsys.readouterr().err
    assert "no better than the baselines" in str(load_rubric(Path("rubrics.yaml")).report["note"])
    assert main(["rubrics", "show", "rubrics.yaml"]) == 0
    assert "no better than the baselines" in " ".join(capsys.readouterr().out.split())


def test_where_nothing_helps_the_candidates_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    PlantedWorld(3, 8, "paired").write_examples(tmp_path / "examples.jsonl")
    with ScriptedChatServer(lambda body: '{"criterion": []}') as server:
        write_conf(tmp_path, server.base_url)
        assert main(["rubrics", "--conf", "conf.yaml"]) == 1
    errors = " ".join(capsys.readouterr().err.split())
    assert "no criterion tells good from bad" in errors
    assert (
        "4 replies could not be used, the last: planted: the reply cannot be used: criteria: Field required" in errors
    )
    assert not Path("rubrics.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rubrics", "--conf", "conf.yaml", "astune.rubrics.examples=null"], "astune.rubrics.examples is not set"),
        (["rubrics", "--conf", "conf.yaml", "astune.rubrics.examples=exmples.jsonl"], "Did you mean 'examples.jsonl'"),
        (
            ["rubrics", "--conf", "conf.yaml", "astune.task_judge.llm.models=[]"],
            "astune.task_judge.llm.models is empty",
        ),
        (["rubrics", "--conf", "conf.yaml", "astune.rubrics.max_cost=1"], "prompt_price is not set"),
        (["rubrics", "show", "ruprics.yaml"], "no such file"),
        (["rubrics", "check", "conf.yaml"], "expected a rubric, and this is a configuration, for --conf"),
    ],
)
def test_bad_input_is_named_before_any_call(
    conf: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["rubrics", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "rubrics --conf rubrics.yaml" in shown and "rubrics show learned.yaml" in shown
