"""`astune data expand` on a generator that plants faults: nothing planted passes, and what is kept is right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astune.data.grow import PER_CALL
from astune.data.prompts import VARY
from astune.task_judge.llm.rubric import load_rubric
from astune.testing import ScriptedChatServer
from astune.types import Task
from tests.data.planted import PlantedTasks
from tests.data.runs import AGREE, expand, rows_of, write_rubric

SHARES = {"wrong answer": 0.15, "copy": 0.08, "near copy": 0.08, "leak": 0.15, "language": 0.05, "empty": 0.05}


@pytest.mark.parametrize("checks", ["[code]", "[agree]"])
def test_no_planted_fault_passes(tmp_path: Path, checks: str) -> None:
    world = PlantedTasks(seed=1, shares=SHARES)
    assert expand(world, tmp_path, f"astune.task_reader.augment.checks={checks}") == 0
    kept, dropped = rows_of(tmp_path / "made.jsonl"), rows_of(tmp_path / "made.dropped.jsonl")
    assert len(kept) == 30
    assert [row for row in kept if world.planted[row["query"]] or world.truth[row["query"]] != row["answer"]] == []
    seen = Counter((row["reason"], world.planted[row["query"]]) for row in dropped)
    assert {reason for reason, planted in seen if planted not in (reason, None, "near copy")} == set()
    assert sum(n for (_, planted), n in seen.items() if planted is None) <= 3  # equal good tasks, drawn twice
    lineage = kept[0]["lineage"]
    assert lineage["model"] == "planted" and lineage["seed"] in {row["lineage"]["seed"] for row in kept}
    assert set(lineage["checks"]) == {checks.strip("[]")}
    assert max(Counter(row["lineage"]["seed"] for row in kept).values()) <= 8  # of 10 seeds, spread


def test_a_rubric_drops_what_it_does_not_pass_and_the_report_says_how_far_it_agrees_with_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, rubric = PlantedTasks(seed=2, shares={"quality": 0.4}), write_rubric(tmp_path)
    assert expand(world, tmp_path, *AGREE, f"astune.task_reader.augment.quality={rubric}", target=10) == 0
    kept, dropped = rows_of(tmp_path / "made.jsonl"), rows_of(tmp_path / "made.dropped.jsonl")
    assert {world.planted[row["query"]] for row in kept} == {None}
    assert {(row["reason"], world.planted[row["query"]]) for row in dropped} == {("quality", "quality")}
    assert kept[0]["lineage"]["checks"]["quality"] == {"rubric": load_rubric(rubric).digest, "reward": 1.0}
    agreement = "clear_tasks agrees with people on 90% (70% to 97%) of 20 rated ones, kappa 0.8"
    assert agreement in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "made.report.json").read_text())["quality"] == agreement


def test_no_kind_of_tasks_takes_the_place_of_the_others(tmp_path: Path) -> None:
    """Of five kinds three come out wrong: the other two take twice their share each, and no more."""
    world = PlantedTasks(seed=5)

    def spoil(body: Mapping[str, Any]) -> str | int:
        reply = world(body)
        if any(VARY[kind] in body["messages"][0]["content"] for kind in ("harder", "new", "wording")):
            tasks = json.loads(str(reply))["tasks"]
            reply = json.dumps({"tasks": [{**task, "answer": "no number"} for task in tasks]})
        return reply

    with ScriptedChatServer(spoil) as server:
        model = f"astune.task_reader.augment.models=[{{base_url: '{server.base_url}', model: m}}]"
        ended = expand(world, tmp_path, *AGREE, model, target=20)
    rows = rows_of(tmp_path / "made.jsonl")
    assert ended == 1 and Counter(row["lineage"]["kind"] for row in rows) == {"numbers": 8, "names": 8}
    assert "nothing new came any more" in (tmp_path / "made.report.json").read_text()


def test_more_tasks_than_were_asked_for_are_not_paid_for(tmp_path: Path) -> None:
    world = PlantedTasks(seed=5)
    many = json.dumps({"tasks": [{"question": f"Ada buys {n} pens, 7 each. What?", "answer": "x"} for n in range(90)]})
    with ScriptedChatServer(lambda body: many if "example" in str(body) else '{"answer": "y"}') as server:
        model = f"astune.task_reader.augment.models=[{{base_url: '{server.base_url}', model: m}}]"
        assert expand(world, tmp_path, *AGREE, model, target=4) == 1
    report = json.loads((tmp_path / "made.report.json").read_text())
    assert sum(report["dropped"].values()) == PER_CALL * sum("example" in str(body) for body in server.requests)


def test_what_cannot_be_checked_is_dropped_and_junk_costs_no_task(tmp_path: Path) -> None:
    """Solutions err and programs fail: fewer tasks come, none of them wrong."""
    world = PlantedTasks(seed=3, shares={"wrong answer": 0.3}, noise=0.25, broken=0.2)
    expand(world, tmp_path, "astune.task_reader.augment.checks=[agree]", target=8)
    kept = rows_of(tmp_path / "made.jsonl")
    assert kept and all(world.truth[row["query"]] == row["answer"] for row in kept)
    assert {row["reason"] for row in rows_of(tmp_path / "made.dropped.jsonl")} >= {"wrong answer", "no agreement"}


def test_a_budget_that_ends_midway_leaves_a_marked_set_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = PlantedTasks(seed=4, shares=SHARES)
    (tmp_path / "whole").mkdir()
    assert expand(whole, tmp_path / "whole", *AGREE, target=24) == 0
    world = PlantedTasks(seed=4, shares=SHARES)
    assert expand(world, tmp_path, *AGREE, "astune.task_reader.augment.max_calls=40", target=24) == 1
    cut_off = json.loads((tmp_path / "made.report.json").read_text())
    rows = rows_of(tmp_path / "made.jsonl")
    assert not cut_off["complete"] and "all 40 model calls" in cut_off["ended"] and 0 < len(rows) < 24
    assert "all 40 model calls of the budget are made" in " ".join(capsys.readouterr().out.split())
    before = sum(world.calls.values())
    assert expand(world, tmp_path, *AGREE, target=24) == 0
    assert rows_of(tmp_path / "made.jsonl") == rows_of(tmp_path / "whole/made.jsonl")
    assert before == 40 and sum(world.calls.values()) == sum(whole.calls.values())  # nothing was paid twice


def test_a_dry_run_asks_nothing_and_bounds_what_a_run_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = PlantedTasks(seed=5)
    assert expand(world, tmp_path, *AGREE, "--dry-run", target=20) == 0
    assert world.calls == {} and not (tmp_path / "made.jsonl").exists()
    said = capsys.readouterr().out
    least, most = (int(number.replace(",", "")) for number in said.split(" model calls")[0].split(" to "))
    assert "which cost about" in said
    assert expand(world, tmp_path, *AGREE, target=20) == 0
    assert least <= sum(world.calls.values()) <= most


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [("6 * 7?", "42"), ("6 * 7 ?", "43")],
            "seeds.jsonl:2: the same question as .*seeds.jsonl:1 with another answer",
        ),
        ([], "no tasks, the file is empty"),
    ],
)
def test_seeds_that_cannot_be_varied_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[tuple[str, str]], expected: str
) -> None:
    world = PlantedTasks()
    world.seeds = [Task(str(n), query, answer=answer) for n, (query, answer) in enumerate(rows)]
    assert expand(world, tmp_path) == 2
    assert re.search(expected, capsys.readouterr().err)
    assert world.calls == {}


def test_a_file_of_the_users_own_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "made.jsonl").write_text('{"query": "mine"}\n')
    assert expand(PlantedTasks(), tmp_path) == 2
    assert "`astune data` did not write it" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = PlantedTasks()
    (tmp_path / "a file").write_text("")
    assert expand(world, tmp_path, "--out", str(tmp_path / "a file/made.jsonl")) == 1
    assert "cannot be written" in capsys.readouterr().err and world.calls == {}
