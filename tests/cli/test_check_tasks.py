"""`astune check-tasks`: what it prints, its exit code, and what it leaves out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.support.file_kinds import Kind, kind_of
from astune.task_judge.llm.fence import read_fences
from astune.testing import ScriptedChatServer

Check = Callable[..., tuple[int, str, str]]


def row(n: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"t{n}", "query": f"What is {n} times 7?", "answer": str(7 * n), **fields}


ROWS = [row(n) for n in range(1, 6)]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """`check(rows, "--json", heldout=rows, **files)`: exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(
        rows: list[dict[str, Any]], *arguments: str, heldout: list[dict[str, Any]] | None = None, **files: str
    ) -> tuple[int, str, str]:
        Path("train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        Path("heldout.jsonl").write_text("".join(json.dumps(one) + "\n" for one in heldout or []))
        for name, text in files.items():
            Path(f"{name}.py").write_text(text)
        held_out = ", validation: {file_path: heldout.jsonl}" if heldout else ""
        Path("x.yaml").write_text(
            f"astune:\n  task_reader: {{jsonl: {{training: {{file_path: train.jsonl}}{held_out}}}}}\n"
            "  task_judge: {judge_protocol: MathAnswerAsJudge}\n"
        )
        code = main(["check-tasks", "--conf", "x.yaml", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def own(body: str) -> str:
    return f"def judge(task, episode):\n    print('looked at', task.task_id)\n    return {body}\n"


OWN = "astune.task_judge.judge_protocol=own.py:judge"


def test_a_data_set_that_is_judged_rightly(check: Check) -> None:
    code, out, _ = check(ROWS, heldout=[row(9)])
    assert code == 0
    assert out.splitlines()[0] == "MathAnswerAsJudge: 6 tasks, answers written as in \\boxed{42}"
    table = {line[:24].strip(): line.split()[-3:] for line in out.splitlines()[3:17]}
    assert table.pop("the reference answer") == table.pop("a readable reference") == ["6", "0", "0"]
    assert table.pop("a digit less") == table.pop("another first digit") == ["0", "5", "0"]  # one is 7
    assert len(table) == 10 and all(counts == ["0", "6", "0"] for counts in table.values())
    assert {"another task's answer", "one more", "another last digit", "the other sign", "its negation"} <= set(table)
    assert "not tried, as no task has a reference that suits: another unit, upside down" in out
    assert out.splitlines()[-1] == "all 6 tasks are judged rightly"


@pytest.mark.fault("Judges", "a judge passes what must fail", "`astune check-tasks` shows the task with its place")
def test_what_passes_and_must_not_is_shown_with_its_place(check: Check) -> None:
    code, out, err = check(ROWS, OWN, own=own("task.answer in episode.output.answer"), heldout=[row(9)])
    assert code == 1
    assert "all options at once            6       0           0   <- should fail" in out
    assert "train.jsonl:2  task 't2', reference '14'" in out and "heldout.jsonl:1  task 't9', reference '63'" in out
    assert "    all options at once passes: '21, 14 or 28': reward 1" in out
    assert out.splitlines()[-1] == "6 of 6 tasks fail" and "own.py:judge: 6 tasks, answers written as they are" in out
    assert "looked at" not in out and "looked at t1" in err


def test_a_reference_answer_that_cannot_be_judged_is_listed_as_such(check: Check) -> None:
    code, out, _ = check([*ROWS, {"id": "odd", "query": "?"}])
    assert code == 1 and "train.jsonl:6  task 'odd', reference None" in out
    assert "the reference answer cannot be judged" in out and "has no reference answer" in out
    assert "got no verdict" not in out and out.splitlines()[-1] == "1 of 6 tasks fail"


PROSE = "Let n be even. Then n squared is even as well, so that the sum of both is even, too."


@pytest.mark.fault(
    "Judges",
    "no answer can equal a task's reference answer: it is prose, or no formula",
    "`astune check-tasks` names it",
)
def test_a_reference_that_no_other_answer_equals_is_found(check: Check) -> None:
    found = {
        PROSE: "prose, 20 words: no answer in other words equals it",
        f"\\boxed{{{PROSE}}}": "prose, 20 words: no answer in other words equals it",
        "2 and 2 are 4\n####": "empty",
        "####": "empty",
        "$$": "empty",
        "\\boxed{}": "empty",
        "...": "empty",
        "\\frac{1}{": "cannot be read as mathematics: no answer but its very text equals it",
        "12 \\text{ W}": "is taken for a formula: write the number alone",
        "30\\ \\frac{\\text{m}}{\\text{s}}": "is taken for a formula: write the number alone",
    }
    code, out, _ = check([*ROWS, *(row(n, answer=answer) for n, answer in enumerate(found, 10))], "--json")
    readings = [one for one in json.loads(out)["failures"] if one["kind"] == "a readable reference"]
    assert code == 1 and [one["reference"] for one in readings] == [*found]
    assert all(one["said"].endswith(f"{why})") for one, why in zip(readings, found.values(), strict=True))
    _, out, _ = check([*ROWS, row(6, id="odd", answer=PROSE)])
    assert "no other answer equals the reference: 'Let n be even" in out and out.splitlines()[-1] == "1 of 6 tasks fail"


def test_references_that_answers_can_equal_are_fine(check: Check) -> None:
    fine = [
        "72 clips",
        "5 km",
        r"9\pi \text{ cm}^2",
        "B",
        "yes",
        "3:30 PM",
        "3:4",
        "12_7",
        "no solution",
        "Evelyn",
        r"\{\}",
    ]
    fine += [r"\frac{1}{2}", "x=5", "f(2)=5", "[0,1)", "(1,2)", r"\pm 2", r"\approx 3.14", "50%", ">", "60^\\circ"]
    fine += ["Monday, Tuesday and Friday", r"\begin{pmatrix}1\\2\end{pmatrix}", "x \\ge 2", "5 m/s", "10 dollars"]
    code, out, _ = check([row(n, answer=answer) for n, answer in enumerate(fine)])
    assert code == 0, out


def test_an_answer_that_must_fail_and_gets_no_verdict_is_told_of(check: Check) -> None:
    code, out, _ = check(ROWS, OWN, own=own("int(episode.output.answer) == int(task.answer)"))
    assert code == 0
    assert "25 answers that must fail got no verdict" in out


def test_only_the_first_are_shown_and_all_are_in_the_json(check: Check) -> None:
    many = [row(n) for n in range(1, 31)]
    code, out, _ = check(many, OWN, own=own("True"))
    assert code == 1 and "... 10 more (all with --json)" in out and "task 't20'" in out and "task 't21'" not in out
    code, out, _ = check(many, OWN, "--json", own=own("True"))
    found = json.loads(out)
    assert kind_of(found) is Kind.CHECK
    assert code == 1 and (found["tasks"], found["failing"], len(found["failures"])) == (30, 30, 358)
    assert found["answers"]["the reference answer"] == {"pass": 30, "fail": 0, "error": 0, "wrong": 0}
    assert found["answers"]["an empty answer"] == {"pass": 30, "fail": 0, "error": 0, "wrong": 30}
    assert next(one for one in reversed(found["failures"]) if one["kind"] == "all options at once") == {
        "task_id": "t30",
        "place": "train.jsonl:30",
        "kind": "all options at once",
        "answer": "7, 14 or 210",
        "reference": "210",
        "reward": 1.0,
        "passed": True,
        "said": "reward 1",
    }


def test_a_split_and_a_limit_can_be_chosen(check: Check) -> None:
    for arguments, tasks in (
        ((), ["t1", "t2", "t3", "t4", "t5", "t8", "t9"]),
        (("--split", "validation"), ["t8", "t9"]),
        (("--limit", "1"), ["t1", "t8"]),
        (("--split=training", "--limit=2"), ["t1", "t2"]),
    ):
        _, out, _ = check(ROWS, OWN, "--json", *arguments, own=own("0"), heldout=[row(8), row(9)])
        assert [one["task_id"] for one in json.loads(out)["failures"]] == tasks


def test_tasks_that_name_their_judge_are_judged_by_it_in_its_words(check: Check) -> None:
    rows = [
        row(1, scorer="math", answer_schema="answer"),
        row(2, scorer="exam"),
        row(3, scorer="tool_use", expected_tools=["search"]),
        row(4),
    ]
    workflow = (
        "from astune import register_judge\n\n@register_judge('exam_of_check_tasks')\ndef judge(task, episode):\n"
        "    return episode.output.answer == f'Answer: {task.answer}'\n\nasync def agent(task, tuner):\n    pass\n"
    )
    exam = "astune.task_judge.scorers={exam: exam_of_check_tasks}"
    code, out, _ = check(rows, exam, "astune.rollout.agentscope_learn_protocol=work.py:agent", work=workflow)
    assert code == 0, out
    for line in (
        "MathAnswerAsJudge: 1 task, answers written as in <answer>42</answer>",
        "exam_of_check_tasks: 1 task, answers written as in Answer: 42",
        "MathAnswerAsJudge: 1 task, answers written as in \\boxed{42}",
        "left out: 1 task: ToolUseJudge judges what an agent does, not its answer alone",
    ):
        assert line in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["astune.task_judge.judge_protocol=null"], "there is no judge"),
        (["astune.task_judge.judge_protocol=EnvServiceJudge"], "EnvServiceJudge judges what an agent does"),
        (["astune.task_judge.judge_protocol=MathAnswer"], "Did you mean 'MathAnswerAsJudge'?"),
        (["--limit", "0"], "--limit: expected a whole number from 1, found 0"),
        (["--split", "validation"], "there are no tasks in validation"),
        (["astune.task_reader.jsonl.training.file_path=none.jsonl"], "none.jsonl"),
    ],
)
def test_what_cannot_be_checked_is_bad_input(check: Check, arguments: list[str], said: str) -> None:
    code, out, err = check(ROWS, *arguments)
    assert (code, out) == (2, "") and said in err


def test_a_judge_that_asks_models_says_how_many_calls_it_may_take(check: Check) -> None:
    def says(body: dict[str, Any]) -> str:
        fences = dict(read_fences(str(body["messages"][-1]["content"])))
        right = int(fences["answer"] == fences["reference"])
        return json.dumps({"criteria": [{"id": "correct", "reason": "so", "score": right}]})

    with ScriptedChatServer(says) as server:
        models = f"astune.task_judge.llm.models=[{{base_url: '{server.base_url}', model: judge}}]"
        llm = ("astune.task_judge.judge_protocol=LlmAsJudge", models, "astune.task_judge.llm.cache=null")
        code, out, err = check([*ROWS, {"query": "Any?"}], *llm, "--limit", "6")
        calls = len(server.requests)
    assert code == 0, out
    assert "LlmAsJudge asks models: up to 35 calls for 5 tasks" in err and 25 <= calls <= 35
    assert "left out: 1 task: there is no reference answer" in out
    assert out.splitlines()[-1] == "all 5 tasks are judged rightly"


def test_the_workflow_is_imported_only_for_judges_that_it_registers(check: Check) -> None:
    broken = "astune.rollout.agentscope_learn_protocol=work.py:agent"
    code, out, _ = check([row(1, scorer="math"), row(2)], broken, work="raise ValueError('imported')")
    assert code == 0, out
    code, _, err = check([row(1, scorer="own"), row(2)], broken, work="raise ValueError('imported')")
    assert code == 2 and "imported" in err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["check-tasks", "--help"])
    assert exit_.value.code == 0
    assert "astune check-tasks --conf my_agent.yaml --limit 20 --json" in capsys.readouterr().out
