"""`make gpu-check` where there is no GPU: the driver with parts that crash, and every real part in small."""

from __future__ import annotations

import doctest
import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gpu_check
import pytest
from gpu.parts import PARTS, Part

from tests.rows import each_row

FOREVER = float("inf")


def part(name: str, code: str = "good", seconds: float = 60, **options: Any) -> Part:
    return Part(name, f"what {name} does", f"tests.benchmarks.gpu_parts:{code}", seconds, options)


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs parts, in a folder of this test; what gpu_check.json says then."""

    def run(*parts: Part, key: str = "code", deadline: float = FOREVER, only: list[str] | None = None) -> Any:
        check = gpu_check.Check(parts, tmp_path, key, gpu_check.environment_of([]), tiny=False)
        check.run(only, deadline)
        found = json.loads((tmp_path / "gpu_check.json").read_text())
        return found | {"exit code": check.exit_code(), "page": (tmp_path / "gpu_check.md").read_text()}

    return run


def statuses(found: dict[str, Any]) -> list[str]:
    return [each["status"] for each in found.values() if isinstance(each, dict)]


def test_a_part_that_crashes_costs_itself_alone_and_what_it_found_stays(checked: Callable[..., Any]) -> None:
    found = checked(part("one"), part("two", "dies"), part("three", "fails"), part("four", value=7))
    assert statuses(found) == ["passed", "failed", "failed", "passed"] and found["exit code"] == 1
    assert found["four"]["facts"] == {"value": 7} and found["two"]["facts"] == {"found before": 2}
    assert found["three"]["tables"] == {"": [{"found before": 1}]}
    assert "the agent did not get better" in found["three"]["end of its log"]
    assert "| three | what three does |" in found["page"] and "| a / b | 0.5 |" in found["page"]


def test_a_part_that_hangs_is_ended_with_all_that_it_started(checked: Callable[..., Any]) -> None:
    found = checked(part("one", "hangs", seconds=10), part("two"))
    assert statuses(found) == ["cut", "passed"] and found["exit code"] == 1
    child = found["one"]["facts"]["child"]
    for _ in range(600):  # whoever takes in orphans has to notice its end
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


def test_what_went_well_is_not_run_again_and_what_was_never_tried_comes_first(
    checked: Callable[..., Any], tmp_path: Path
) -> None:
    parts = (part("one", "better_at_last"), part("two"), part("three"))
    first = checked(*parts, only=["one", "two"])
    assert statuses(first) == ["failed", "passed", "not run"] and first["exit code"] == 1
    second = checked(*parts)
    assert statuses(second) == ["passed", "passed", "passed"] and second["exit code"] == 0
    assert (tmp_path / "runs").read_text().split() == ["two", "three"]
    order = sorted(("one", "three"), key=lambda name: (tmp_path / f"{name}.json").stat().st_mtime_ns)
    assert order == ["three", "one"]
    assert statuses(checked(*parts, key="other code", deadline=0.0)) == ["not run"] * 3


def test_without_time_there_is_still_a_page_that_says_what_was_not_run(checked: Callable[..., Any]) -> None:
    found = checked(part("one"), part("two"), deadline=time.monotonic() + 1)
    assert statuses(found) == ["not run", "not run"] and found["page"].count("| not run |") == 2


def test_a_part_that_lacks_a_package_is_skipped_and_no_failure(checked: Callable[..., Any]) -> None:
    found = checked(replace(part("one"), needs=("json", "no_such_engine")), part("two"))
    assert statuses(found) == ["skipped", "passed"] and found["exit code"] == 0
    assert found["one"]["facts"] == {"not here": "no_such_engine"} and "| skipped |" in found["page"]


def test_the_code_that_results_belong_to_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    (tmp_path / "astune/__pycache__").mkdir(parents=True)
    file = tmp_path / "astune/a.py"
    file.write_text("1")
    before = gpu_check.digest()
    (tmp_path / "astune/__pycache__/a.pyc").write_text("compiled")
    assert gpu_check.digest() == before
    file.write_text("2")
    assert gpu_check.digest() != before


def test_the_examples_of_the_page_are_right() -> None:
    import gpu.report

    found = doctest.testmod(gpu.report)
    assert found.attempted >= 2 and not found.failed


REAL = {part.code: part for part in reversed(PARTS) if part.code != "gpu.tests:run"}  # tests/gpu itself runs here


def test_every_part_that_does_not_test_runs_in_small(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("agentscope")
    pytest.importorskip("peft")
    from gpu.job import run_part

    for each in sorted(REAL.values(), key=PARTS.index):
        run_part(each, tmp_path, tiny=True)
        found = json.loads((tmp_path / f"{each.name}.notes.json").read_text())
        assert found["facts"] or found["tables"], each.name
        (tmp_path / f"{each.name}.json").write_text(json.dumps(found))
    rows = json.loads((tmp_path / "training-0.6B-2048.notes.json").read_text())["tables"][""]
    assert {row["who"] for row in rows} == {"ASTune", "ASTune, adamw_fused", "a plain loop"}
    assert all(row["tokens/s"] > 0 for row in rows)
    assert not re.search(r"nan|inf", json.dumps(rows))
    attention = json.loads((tmp_path / "trees.notes.json").read_text())["tables"][""]
    assert [row["who"] for row in attention] == ["ASTune", "rows", "FlexAttention"]


@each_row("seed", range(5))
def test_flex_and_flash_attention_over_a_tree_are_what_astune_computes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("agentscope")
    from gpu import trees

    from astune.backbone.local.model.attention import FLASH
    from tests.backbone.local.flash_stand_in import use_stand_in

    chance = random.Random(seed)
    rows: list[tuple[int, ...]] = [(1,)]
    for _ in range(12):  # each goes on behind some beginning of another
        begun = chance.choice(rows)
        rows.append((*begun[: chance.randint(1, len(begun))], *(chance.randrange(9) for _ in range(20))))
    tree = trees.pack(sorted(set(rows)))
    torch.manual_seed(seed)
    states = [torch.randn(1, heads, len(tree.tokens), 16, requires_grad=True) for heads in (4, 2, 2)]
    use_stand_in(monkeypatch)
    makes = trees.ours, trees.by_flex, partial(trees.ours, kernel=FLASH)
    expected, *others = (trees.gradients(make(tree, torch.device("cpu")), states) for make in makes)
    for found in others:
        assert max(map(trees.distance, found, expected)) < 1e-5
    assert not doctest.testmod(trees).failed


@pytest.mark.parametrize("name", ["0.6B", "4B"])
def test_the_shapes_have_the_numbers_of_the_models_they_are_named_for(name: str) -> None:
    torch = pytest.importorskip("torch")
    from gpu.shapes import shape
    from transformers import Qwen3ForCausalLM

    made = shape(name)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(made.config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert expected == {"0.6B": 596_049_920, "4B": 4_022_468_096}[name]
    norms = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 1)
    assert made.matrices + made.head + norms == expected
