"""`astune judge-report`: judges before answers that people have labelled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from astune.cli import main
from astune.support.file_kinds import Kind, kind_of
from astune.task_judge.llm.fence import read_fences
from astune.testing import ScriptedChatServer

JUDGES = '''
from astune.errors import JudgeError
from astune.types import Verdict

def lenient(task, episode):
    """Whoever names the answer somewhere is right; long answers confuse it."""
    text = str(episode.output.answer)
    if len(text) > 25:
        raise JudgeError("too long to read")
    return 0.9 if task.answer in text else 0.2

def hidden(task, response):
    return "label" not in task and "response" not in task and response is not None

def graded(task, episode):
    return episode.output.answer.count("!") / 4

def unpriced(task, episode):
    return Verdict(1.0, True, "", {"llm_calls": 1.0})

def broken(task, episode):
    return float("nan")

class Ranks:
    """The longest answer of a group is the best; says so of each."""
    def __init__(self, config):
        pass
    async def judge(self, task, episode):
        return Verdict(0.0, False, "alone")
    async def judge_group(self, task, episodes):
        lengths = [len(episode.output.answer) for episode in episodes]
        return [
            Verdict(n / max(lengths), n == max(lengths), f"of {len(lengths)}", {"position_consistency": 0.5})
            for n in lengths
        ]

class Costly:
    """Asks no model about task e."""
    def __init__(self, config):
        pass
    async def judge(self, task, episode):
        if task.task_id == "e":
            return Verdict(1.0, True, "by rule")
        used = {"llm_calls": 2.0, "llm_prompt_tokens": 90.0, "llm_completion_tokens": 10.0, "llm_cost": 0.003}
        return Verdict(1.0, True, "yes", used)
'''

ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "6 * 12?", "answer": "72", "response": "#### 72", "label": True},
    {"id": "a", "question": "6 * 12?", "answer": "72", "response": "\\boxed{72} or \\boxed{62}", "label": False},
    {"id": "b", "question": "5 + 5?", "answer": "10", "response": "\\boxed{10}", "label": True},
    {"id": "b", "question": "5 + 5?", "answer": "10", "response": "#### 11, not 10", "label": False},
    {
        "id": "c",
        "question": "1 + 1?",
        "answer": "2",
        "response": "well, that is obviously two | 2",
        "label": 1,
    },
    {"id": "d", "question": "1 + 2?", "answer": "3", "response": 3, "label": 1},
    {"id": "e", "question": "1 + 3?", "response": "#### 4", "label": 1},
]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command on rows in a fresh folder."""
    monkeypatch.chdir(tmp_path)
    Path("judges.py").write_text(JUDGES)
    Path("job.yaml").write_text("astune: {task_judge: {judge_protocol: MathAnswerAsJudge}}\n")

    def run(*arguments: str, rows: list[dict[str, Any]] = ROWS) -> int:
        Path("labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return main(["judge-report", "--conf", "job.yaml", "--examples", "labelled.jsonl", *arguments])

    return run


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert kind_of(found) is Kind.REPORT
    return found


def cells(text: str, name: str) -> list[str]:
    """The values of a row of a table in Markdown."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


def test_judges_stand_side_by_side_and_what_one_could_not_judge_is_no_agreement(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--judge", "MathAnswerAsJudge", "--judge", "judges.py:lenient") == 0
    text = capsys.readouterr().out
    assert text.startswith("7 labelled answers to 5 tasks (labelled.jsonl): 5 right, 2 wrong by their labels\n")
    assert cells(text, "judged") == ["6 of 7", "5 of 7"]
    assert cells(text, "could not judge") == ["1", "2"]
    assert cells(text, "agrees, of all") == ["71.4 %", "42.9 %"]
    assert [cell.split(" (")[0] for cell in cells(text, "agrees with the label")] == ["83.3 %", "60.0 %"]
    assert [cell.split(" (")[0] for cell in cells(text, "false positives")] == ["0 of 2", "2 of 2"]
    assert [cell.split(" (")[0] for cell in cells(text, "false negatives")] == ["1 of 4", "0 of 3"]
    assert cells(text, "mean reward, label false") == ["0.000 of 2", "0.900 of 2"]
    assert "has no reference answer" in text and "JudgeError: too long to read" in text
    assert "where a verdict does not say whether the answer passed, it does from reward 0.5 on" in text
    assert "on 5 answers that both judged: only the first agrees on 2, only the second on 0; McNemar p = 0.5" in text


def test_the_confusion_matrix_and_the_calibration_of_each_judge_are_shown(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--judge", "MathAnswerAsJudge") == 0
    text = capsys.readouterr().out
    assert cells(text, "label right") == ["3", "1", "1"]
    assert cells(text, "label wrong") == ["0", "2", "0"]
    bars = [line for line in text.splitlines() if "█" in line]
    assert [bar.split()[:4] for bar in bars] == [["0.0-0.1", "3", "33", "%"], ["0.9-1.0", "3", "100", "%"]]
    assert "disagrees with the label on 1:" in text and "no answer in the format 'auto'" in text


def test_json_has_every_figure_disagreement_and_failure(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--json", "--judge", "MathAnswerAsJudge", "--judge", "judges.py:lenient") == 0
    found = printed(capsys)
    assert found["examples"]["n"] == 7 and found["examples"]["tasks"] == 5 and not found["examples"]["graded"]
    math, lenient = found["judges"]
    assert (math["judge"], math["judged"], math["failed"]) == ("MathAnswerAsJudge", 6, 1)
    assert [(row["number"], row["task_id"], row["passed"]) for row in lenient["disagreements"]] == [
        (2, "a", True),
        (4, "b", True),
    ]
    assert [row["number"] for row in lenient["failures"]] == [5, 7]
    assert (lenient["precision"], lenient["recall"], lenient["true_negatives"]) == (0.6, 1.0, 0)
    assert (math["kappa"]["value"], lenient["kappa"]["value"]) == (pytest.approx(2 / 3), 0)
    assert (math["pairs"], math["pairs_of_a_task"], math["pairwise"]["value"]) == (2, True, 1.0)
    assert lenient["pairwise"]["value"] == 0.5
    assert found["comparisons"][0]["only_first"] == 2


def test_a_judge_of_groups_gets_all_answers_to_a_task_at_once_and_a_single_one_alone(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    without_ids = [{name: value for name, value in row.items() if name != "id"} for row in ROWS[:3]]
    assert report("--json", "--judge", "judges.py:Ranks", rows=without_ids) == 0
    (judge,) = printed(capsys)["judges"]
    assert [(row["number"], row["reason"]) for row in judge["disagreements"]] == [
        (1, "of 2"),
        (2, "of 2"),
        (3, "alone"),
    ]
    assert judge["position_consistency"] == 0.5


def test_cost_calls_and_tokens_are_told_per_thousand_answers(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--judge", "judges.py:Costly", "--judge", "judges.py:lenient") == 0
    text = capsys.readouterr().out
    assert cells(text, "cost per 1,000") == ["2.57", "-"]
    assert cells(text, "calls per 1,000") == ["1,714", "-"]
    assert cells(text, "tokens per 1,000") == ["85,714", "-"]


def test_the_cost_is_not_known_where_that_of_one_call_is_not(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = "astune.task_judge.judge_protocol=[{judge: 'judges.py:Costly'}, {judge: 'judges.py:unpriced'}]"
    assert report("--json", protocol, rows=ROWS[:4]) == 0
    (judge,) = printed(capsys)["judges"]
    assert (judge["judge"], judge["usage"]["calls"]) == ("judges.py:Costly + judges.py:unpriced", 3000)
    assert judge["usage"]["cost"] is None


def test_an_llm_judge_is_told_what_its_mode_its_mistakes_and_its_cache_cost(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any]) -> str | int:
        blocks = dict(read_fences(body["messages"][1]["content"]))
        if "11" in blocks["answer"]:
            return 400
        name = blocks["criteria"].split(" | ")[0]
        highest = int(blocks["criteria"].split(" | ")[1].partition("-")[2])
        good = any(text in blocks["answer"] for text in ("72", "10", "two"))
        return json.dumps({"criteria": [{"id": name, "reason": "by its look", "score": highest * good}]})

    with ScriptedChatServer(answer, usage=True) as server:
        model = f"{{base_url: '{server.base_url}', model: m, max_retries: 0, prompt_price: 1, completion_price: 2}}"
        options = ["--json", "--judge", "LlmAsJudge", f"astune.task_judge.llm.models=[{model}]"]
        options.append("astune.task_judge.llm.cache=replies.sqlite")
        assert report(*options, rows=ROWS[:5]) == 0
        (first,) = printed(capsys)["judges"]
        assert report(*options, rows=ROWS[:5]) == 0
        (second,) = printed(capsys)["judges"]
    assert (first["judged"], first["failed"], first["failures"][0]["number"]) == (4, 1, 4)
    assert [(row["number"], row["reason"]) for row in first["disagreements"]] == [(2, "correct 1: by its look")]
    assert first["usage"]["calls"] == 1000 and first["usage"]["cached"] == 0 and first["usage"]["cost"] > 0
    assert second["usage"]["calls"] == 0 and second["usage"]["cached"] == 1000 and second["usage"]["cost"] == 0
    assert second["disagreements"] == first["disagreements"]


def test_judges_do_not_see_the_label(report: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert report("--json", "--judge", "judges.py:hidden", "--label-field", "label") == 0
    assert {row["passed"] for row in printed(capsys)["judges"][0]["disagreements"]} == {True}


GRADED = [
    {"query": f"q{index}", "text": "!" * marks, "stars": stars}
    for index, (marks, stars) in enumerate([(0, 1), (1, 2), (2, 3), (4, 4), (3, 5)])
]


@pytest.mark.parametrize(("option", "right", "accuracy"), [([], 3, 1.0), (["--pass-label", "4.5"], 1, 0.6)])
def test_graded_labels_are_ranked_and_split_where_the_output_says(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str], option: list[str], right: int, accuracy: float
) -> None:
    fields = ["--response-field", "text", "--label-field", "stars", "--judge", "judges.py:graded", *option]
    assert report("--json", *fields, rows=GRADED) == 0
    found = printed(capsys)
    assert found["examples"]["right"] == right and found["examples"]["graded"]
    (judge,) = found["judges"]
    assert judge["accuracy"]["value"] == accuracy
    assert judge["spearman"]["value"] == pytest.approx(0.9)
    assert (judge["pairs"], judge["pairs_of_a_task"], judge["pairwise"]["value"]) == (10, False, 0.9)
    assert judge["quadratic_kappa"]["value"] == pytest.approx(0.9)
    report(*fields, rows=GRADED)
    text = capsys.readouterr().out
    assert f"from 1 to 5: an answer is right from {option[1] if option else 3} on (--pass-label)" in text
    assert cells(text, "mean reward, label 5") == ["0.750 of 1"]


def test_the_page_shows_the_same_figures_and_escapes_what_answers_say(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [*ROWS, {**ROWS[0], "id": "<script>", "label": False}]
    assert report("--out", "page.html", rows=rows) == 0
    assert "written page.html" in capsys.readouterr().err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page and "<script" not in page
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "") and "https:" not in page
    for text in ("MathAnswerAsJudge", "has no reference answer", "7 of 8", "judged wrong"):
        assert text in page
    plot = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    circles = [node for node in plot.iter() if node.tag.endswith("circle")]
    assert [node[0].text for node in circles] == ["reward 0.0 to 0.1: 1 of 3 right", "reward 0.9 to 1.0: 3 of 4 right"]


def test_a_judge_that_could_judge_nothing_is_a_failure(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("--judge", "judges.py:broken") == 1
    text = capsys.readouterr().out
    assert cells(text, "judged") == ["0 of 7"] and cells(text, "agrees, of all") == ["0.0 %"]
    assert "reward must be a finite number" in text


def test_tasks_that_name_a_scorer_are_judged_by_it_unless_a_judge_is_named(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [ROWS[0], {**ROWS[3], "scorer": "mine"}]
    override = "astune.task_judge.scorers={mine: 'judges.py:lenient'}"
    assert report("--json", override, rows=rows) == 0
    assert printed(capsys)["judges"][0]["false_positives"] == 1
    assert report("--json", override, "--judge", "MathAnswerAsJudge", rows=rows) == 0
    assert printed(capsys)["judges"][0]["false_positives"] == 0


def test_a_judge_that_the_module_of_the_workflow_registers_has_its_name(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("agent.py").write_text(
        "from astune.task_judge import register_judge\n"
        "@register_judge('generous')\n"
        "def generous(task, episode):\n"
        "    return True\n"
        "class Agent: pass\n"
    )
    workflow = "astune.rollout.agentscope_learn_protocol=agent.py:Agent"
    assert report("--json", "--judge", "generous", workflow) == 0
    assert printed(capsys)["judges"][0]["recall"] == 1
    assert report("--judge", "generos", workflow) == 2
    assert "Did you mean 'generous'?" in capsys.readouterr().err


@pytest.mark.fault("Judges", "true and false stand beside scores, or labels contradict", "an error with file and line")
@pytest.mark.parametrize(
    ("row", "arguments", "message"),
    [
        ({"respons": "x"}, [], "labelled.jsonl:2: 'response', the answer to judge, is missing; the line has"),
        ({"respons": "x"}, [], "Did you mean 'respons'? --response-field names another key"),
        ({"response": None}, [], "labelled.jsonl:2: 'response', the answer to judge, is null"),
        ({"response": "x", "label": "yes"}, [], "labelled.jsonl:2: 'label' must be true, false or a number"),
        (
            {"response": "x", "label": 3},
            [],
            "labelled.jsonl:2: the label 3 is on a scale, but labelled.jsonl:1 has true; expected numbers in all lines",
        ),
        (
            {"response": "x", "label": True, "is_correct": False},
            [],
            "labelled.jsonl:2: 'label' is True, 'is_correct' is False: labels that contradict each other",
        ),
        ({"response": "x", "label": None}, [], "labelled.jsonl:2: 'label', the label, is null"),
        ({"response": "x", "question": " "}, [], "labelled.jsonl:2: the query in column 'question' is empty"),
        ({"response": "x"}, ["--judge", "MathAnswerAsJugde"], "Did you mean 'MathAnswerAsJudge'?"),
        ({"response": "x"}, ["astune.task_judge.judge_protocol=null"], "no judge: name one with --judge"),
        ({"response": "x"}, ["--out", "nowhere/page.html"], "--out nowhere/page.html: there is no folder"),
    ],
)
def test_bad_input_is_named_with_its_place(
    report: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    row: dict[str, Any],
    arguments: list[str],
    message: str,
) -> None:
    second = {"question": "2 + 2?", "answer": "4", "label": True, **row}
    assert report(*arguments, rows=[ROWS[0], second]) == 2
    assert message in capsys.readouterr().err


def test_a_judge_that_is_undecided_could_not_judge(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "unsure.py").write_text(
        "from astune import Verdict\n"
        "def judge(task, episode):\n"
        "    return Verdict(0.5, undecided=True, reason='A, then B')\n"
    )
    assert report("--json", "--judge", "unsure.py:judge") == 1
    (judge,) = printed(capsys)["judges"]
    assert (judge["judged"], judge["failed"], len(judge["disagreements"])) == (0, 7, 0)
    assert judge["failures"][0]["reason"] == "JudgeError: undecided: A, then B"


def test_is_correct_is_a_label_too_and_an_empty_file_an_error(
    report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {name: value for name, value in ROWS[0].items() if name != "label"}
    assert report("--json", rows=[{**row, "is_correct": True}]) == 0
    assert printed(capsys)["judges"][0]["true_positives"] == 1
    assert report(rows=[]) == 2
    assert "labelled.jsonl: no examples" in capsys.readouterr().err
