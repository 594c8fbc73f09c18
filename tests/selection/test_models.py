"""`astune eval --models`: chat APIs whose success and price are known play the same tasks, and one is picked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import astune
from astune.cli import main
from astune.testing import ScriptedChatServer
from tests.rows import each_row
from tests.selection.worlds import TASKS, asker, judge, knows, write_job

PRICES = {"prompt_price": 1e6, "completion_price": 0}


class Apis:
    """Chat APIs by name, with the configuration that has them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.servers: dict[str, ScriptedChatServer] = {}
        self.models: dict[str, dict[str, Any]] = {}

    def add(self, name: str, answers: Any, **settings: Any) -> None:
        self.servers[name] = self._stack.enter_context(ScriptedChatServer(answers, usage=True))
        self.models[name] = {"base_url": self.servers[name].base_url, **settings}

    def evaluate(self, *arguments: str, tasks: int = TASKS) -> int:
        job = write_job(self.folder, self.models, tasks)
        return main(["eval", "--conf", str(job), *arguments])

    @property
    def asked(self) -> dict[str, int]:
        return {name: len(server.requests) for name, server in self.servers.items()}


@pytest.fixture
def apis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apis]:
    """`large` solves nine of ten and costs four a task (each prompt has two words), `medium` nearly as many for a
    quarter of it, `small` two of ten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    with ExitStack() as stack:
        apis = Apis(tmp_path, stack)
        apis.add("large", knows(lambda n: n % 10 != 0), prompt_price=2e6, completion_price=0)
        apis.add("medium", knows(lambda n: n % 10 != 0 and n != 1), prompt_price=5e5, completion_price=0)
        apis.add("small", knows(lambda n: n % 10 < 2), prompt_price=1e5, completion_price=0)
        yield apis


def read(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out = capsys.readouterr().out
    found: dict[str, Any] = json.loads(out)
    return found


def test_models_are_set_side_by_side_and_the_best_is_picked(apis: Apis, capsys: pytest.CaptureFixture[str]) -> None:
    assert apis.evaluate("--models", "small", "medium", "large", "--stop-early", "0", "--json") == 0
    found = read(capsys)
    assert (found["picked"], found["evaluation"], found["figure"]) == ("large", "sampled", "success")
    small, medium, large = found["models"]
    assert [each["solved"]["mean"] for each in found["models"]] == [8 / TASKS, 35 / TASKS, 36 / TASKS]
    assert large["cost_per_solved"] == pytest.approx(4.0 * TASKS / 36)
    assert medium["cost_per_solved"] == pytest.approx(1.0 * TASKS / 35)
    assert small["tokens_per_solved"] == pytest.approx(3 * TASKS / 8)
    assert large["call_seconds"][0] <= large["call_seconds"][1] <= large["episode_seconds"][1]
    against = {each["name"]: each for each in found["against_best"]}
    assert against["small"]["difference"]["mean"] == pytest.approx(-28 / TASKS) and against["medium"]["p"] == 1.0
    assert against["small"]["corrected"] == pytest.approx(3 * against["small"]["p"]) and against["small"]["p"] < 1e-5
    assert apis.asked == dict.fromkeys(apis.servers, TASKS)


def test_the_tables_say_what_is_not_known_by_a_dash(apis: Apis, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"{apis.servers['small'].base_url}#s"
    assert apis.evaluate("--models", "large", address, "--stop-early", "0") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "large 90.0 % 77.5 to 97.5 % - - 40 0 of 40" in text or "large 90.0 %" in text
    assert f"{address} - 15 " in text  # no price: a dash, and 15 tokens for each task solved
    assert "picked: large (best)" in text and "no clear difference" not in text


def test_a_model_that_cannot_win_is_left_out_early_and_the_same_command_asks_nobody_again(
    apis: Apis, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--models", "small", "medium", "large", "--json")
    assert apis.evaluate(*arguments) == 0
    found = read(capsys)
    (worse,) = found["left_out"]
    assert worse["name"] == "small" and worse["tasks"] < TASKS and found["picked"] == "large"
    assert apis.asked == {"large": TASKS, "medium": TASKS, "small": worse["tasks"]}
    assert apis.evaluate(*arguments) == 0
    again = read(capsys)
    assert again == found and apis.asked == {"large": TASKS, "medium": TASKS, "small": worse["tasks"]}
    folders = [each["folder"] for each in found["evaluated"]]
    assert main(["eval", "--compare", folders[2], folders[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared"][0]["tasks"] == worse["tasks"]


def test_a_contest_that_was_killed_goes_on(apis: Apis, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--models", "medium", "large", "--json")
    assert apis.evaluate(*arguments) == 0
    found = read(capsys)
    for name in ("episodes/eval_sampled.jsonl", "calls.jsonl"):  # as a kill leaves them
        path = apis.folder / "runs" / "p" / "job-eval" / "large" / name
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:30])
    assert apis.evaluate(*arguments) == 0
    again = read(capsys)
    assert apis.asked["medium"] == TASKS and apis.asked["large"] == TASKS + TASKS // 2
    for name in ("picked", "against_best", "left_out"):
        assert again[name] == found[name]
    assert [each["cost"] for each in again["models"]] == [each["cost"] for each in found["models"]]


def test_the_cheapest_that_is_nearly_as_good_is_picked_by_its_rule(
    apis: Apis, capsys: pytest.CaptureFixture[str]
) -> None:
    assert apis.evaluate("--models", "small", "medium", "large", "--pick", "cheapest within 3 points") == 0
    assert "picked: medium (cheapest within 3 points)" in capsys.readouterr().out
    assert apis.evaluate("--models", "small", "medium", "large", "--pick", "cheapest within 1 point") == 0
    assert "picked: large (cheapest within 1 points)" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_said_and_the_others_go_on(apis: Apis, capsys: pytest.CaptureFixture[str]) -> None:
    apis.models["gone"] = {"base_url": "http://127.0.0.1:9/v1"}
    assert apis.evaluate("--models", "gone", "large", "small", "--json") == 0
    found = read(capsys)
    assert "cannot reach http://127.0.0.1:9/v1" in found["unreached"]["gone"] and found["picked"] == "large"
    assert found["models"][0]["answered"] == 0 and {each["name"] for each in found["against_best"]} == {"small"}


def test_attempts_that_the_model_spoils_are_not_solved_and_their_causes_are_counted(
    apis: Apis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those that were judged, all were right."""
    apis.add("breaks", knows(lambda n: n % 4 == 0, otherwise="broken"))
    assert apis.evaluate("--models", "breaks", "large", "--stop-early", "0", "--json") == 0
    found = read(capsys)
    assert found["models"][0]["solved"]["mean"] == 0.25 and found["models"][0]["failed"] == 30
    ((cause, count),) = [each.values() for each in found["models"][0]["causes"]]
    assert "workflow: KeyError: 'no answer in it' (" in cause and count == 30


def test_the_page_has_the_cells_in_which_models_differ(apis: Apis, capsys: pytest.CaptureFixture[str]) -> None:
    assert apis.evaluate("--models", "medium", "large", "--stop-early", "0") == 0
    page = (apis.folder / "runs" / "p" / "job-eval" / "models.html").read_text()
    assert "1 of 40 tasks" in page and ">t1<" in page and ">t2<" not in page
    view = apis.folder / "runs" / "p" / "job-eval" / "large" / "view.html"
    assert "large/view.html#episode=eval%2Fsampled%3A" in page and view.is_file()


def test_no_task_solved_is_exit_code_3_and_nothing_judged_1(apis: Apis, capsys: pytest.CaptureFixture[str]) -> None:
    apis.add("none", knows(lambda n: False))
    apis.add("nil", knows(lambda n: False))
    assert apis.evaluate("--models", "none", "nil", tasks=4) == 3
    assert "picked: none, as none solved a task" in capsys.readouterr().out
    apis.models = {name: {"base_url": f"http://127.0.0.1:{port}/v1"} for name, port in (("a", 9), ("b", 7))}
    assert apis.evaluate("--models", "a", "b", tasks=4) == 1
    assert "picked: none, as nothing could be judged" in capsys.readouterr().out


@each_row(
    ("arguments", "said"),
    [
        (["--models", "large"], "--models: expected two or more models to choose from, got 1"),
        (["--models", "large", "small", "large"], "--models: 'large' is named twice"),
        (["--models", "large", "smal"], "has no 'smal'. Did you mean 'small'?"),
        (["--models", "large", "small", "--pick", "best of all"], "expected 'best', 'cheapest within D points'"),
        (["--models", "large", "http://127.0.0.1:9/v1"], "expected the model's name behind the address"),
        (["--models", "large", "http://127.0.0.1:9/v1#m@NO_SUCH"], "variable NO_SUCH is not set"),
        (["--models", "large", "small", "--stop-early", "1.5"], "--stop-early: expected a chance"),
        (["--models", "large", "small", "--judge-pairs"], "it compares with the first at --checkpoint"),
        (["--checkpoint", "large", "small", "--pick", "best"], "--pick: it is for --models"),
        (["--models", "large", "http://127.0.0.1:9/v1#m", "--pick", "cheapest within 3 points"], "no price for http"),
    ],
)
def test_bad_input_is_told_before_anybody_is_asked(
    apis: Apis, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert apis.evaluate(*arguments) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert set(apis.asked.values()) == {0}


def test_python_picks_as_the_command_does(apis: Apis) -> None:
    rows = [{"query": f"task {number}"} for number in range(12)]
    models = {name: {"model": name, **each} for name, each in apis.models.items()}
    found = astune.select_model(
        asker,
        rows,
        judge,
        models=["small", "medium", "large"],
        pick="cheapest within 10 points",
        rollout={"auxiliary_models": models},
        evaluation={"decoding": ["sampled"]},
    )
    assert found.picked == "medium" and found.report.is_file() and "picked: medium" in str(found)
