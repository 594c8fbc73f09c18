"""Loading what a configuration names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astune.errors import PluginError
from astune.plugins import load_plugin
from tests.rows import each_row


@pytest.fixture(autouse=True)
def clean_import_state() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_builtin_name_is_looked_up() -> None:
    from collections import OrderedDict

    assert load_plugin("ordered", kind="mapping", builtin={"ordered": "collections:OrderedDict"}) is OrderedDict


@pytest.mark.parametrize("spec", ["collections:OrderedDict", "collections->OrderedDict"])
def test_a_module_may_be_named_in_both_spellings(spec: str) -> None:
    assert load_plugin(spec, kind="mapping").__name__ == "OrderedDict"


@pytest.mark.parametrize("arrow", [":", "->"])
def test_a_file_may_be_named_in_both_spellings(tmp_path: Path, arrow: str) -> None:
    (tmp_path / "agent.py").write_text("class Mine: pass\n")
    assert load_plugin(f"{tmp_path}/agent.py{arrow}Mine", kind="workflow").__name__ == "Mine"


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("class A: pass\nclass B: a = A\n")
    first = load_plugin(f"{tmp_path}/agent.py:A", kind="workflow")
    assert load_plugin(f"{tmp_path}/../{tmp_path.name}/agent.py:B", kind="workflow").a is first


def test_a_file_loads_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text("class Mine: pass\n")
    monkeypatch.chdir("/")
    assert load_plugin(f"{tmp_path}/agent.py:Mine", kind="workflow").__name__ == "Mine"


def test_equal_file_names_and_equal_siblings_do_not_collide(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helper_of_test.py").write_text(f"NAME = {name!r}\n")
        (folder / "agent.py").write_text("from helper_of_test import NAME\nclass Mine:\n    eager = NAME\n")
    one, two = (load_plugin(f"{tmp_path}/{name}/agent.py:Mine", kind="workflow") for name in ("one", "two"))
    assert (one.eager, two.eager) == ("one", "two")


def test_a_class_of_a_file_can_be_pickled(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "agent.py").write_text("class Mine: pass\n")
    kind = load_plugin(f"{tmp_path}/agent.py:Mine", kind="workflow")
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_an_unknown_name_lists_what_there_is() -> None:
    builtin = {"debug": "a:B", "local": "c:D"}
    with pytest.raises(PluginError) as caught:
        load_plugin("debgu", kind="backbone", builtin=builtin)
    assert "unknown backbone 'debgu'. Did you mean 'debug'?" in str(caught.value)
    assert "built in: debug, local" in str(caught.value)


@each_row("spec", ["", ":", "a:", ":b", "a:b c", "my_agent.py"])
def test_a_name_in_no_known_form_says_what_is_expected(spec: str) -> None:
    with pytest.raises(PluginError, match=r"Expected 'package\.module:Name' or 'path/file\.py:Name'"):
        load_plugin(spec, kind="judge")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(PluginError, match="there is no module 'no_such_package' on the import path"):
        load_plugin("no_such_package.inner:Name", kind="judge")
    with pytest.raises(PluginError, match=r"there is no module 'collections\.inner'"):
        load_plugin("collections.inner:Name", kind="judge")


def test_a_missing_name_lists_those_of_the_module(tmp_path: Path) -> None:
    text = "from typing import Protocol\nclass MyWorkflow: pass\ndef other(): pass\n_x = 1\n"
    (tmp_path / "agent.py").write_text(text)
    with pytest.raises(PluginError) as caught:
        load_plugin(f"{tmp_path}/agent.py:MyWorkflo", kind="workflow")
    assert "Did you mean 'MyWorkflow'?" in str(caught.value)
    assert str(caught.value).endswith("It has: MyWorkflow, other")


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    with pytest.raises(PluginError, match=r"no such file: .*/agnt\.py\. Did you mean 'agent\.py'\?"):
        load_plugin(f"{tmp_path}/agnt.py:A", kind="workflow")


@pytest.mark.parametrize("spec", ["maths.py:A", "maths.py"])
def test_a_missing_file_names_the_workflow_in_a_folder_of_its_name(tmp_path: Path, spec: str) -> None:
    (tmp_path / "math").mkdir()
    (tmp_path / "math/workflow.py").touch()
    with pytest.raises(PluginError, match=r"Did you mean 'math/workflow\.py'\?"):
        load_plugin(f"{tmp_path}/{spec}", kind="workflow")


def test_a_wrong_place_in_astune_lists_what_is_built_in(tmp_path: Path) -> None:
    builtin = {"MathAnswerAsJudge": "astune.task_judge.math.judge:MathAnswerAsJudge"}
    for spec in ("astune.task_judge.math_judges->MathJudge", "astune.task_judge.math.judge->MathJudge"):
        with pytest.raises(PluginError, match="built in: MathAnswerAsJudge"):
            load_plugin(spec, kind="judge", builtin=builtin)
    own = tmp_path / "astune/task_judge/mine.py"
    own.parent.mkdir(parents=True)
    own.write_text("class MathAnswerAsJudge: pass\n")
    found = load_plugin(f"{own}:MathAnswerAsJudge", kind="judge", builtin=builtin)
    assert found.__module__.startswith("_astune_plugin_"), "a file of the user's stays the user's"


@each_row(
    ("text", "place"),
    [
        ("x = 1\nimport no_such_package_here\n", "agent.py:2: `import no_such_package_here`: ModuleNotFoundError"),
        ("x = 1\n\nx = 1 / 0\n", "agent.py:3: `x = 1 / 0`: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", "agent.py:2: `json.loads('{')`: JSONDecodeError"),
        ("def broken(:\n", "agent.py:1: SyntaxError"),
        ("import beside_of_test\n", "beside_of_test.py:2: `raise OSError('no')`: OSError: no"),
    ],
)
def test_a_failing_import_shows_the_users_own_line(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "agent.py").write_text(text)
    (tmp_path / "beside_of_test.py").write_text("x = 1\nraise OSError('no')\n")
    with pytest.raises(PluginError) as caught:
        load_plugin(f"{tmp_path}/agent.py:A", kind="workflow")
    assert place in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_file_that_failed_can_be_loaded_once_it_is_fixed(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("1 / 0\n")
    with pytest.raises(PluginError):
        load_plugin(f"{tmp_path}/agent.py:Mine", kind="workflow")
    (tmp_path / "agent.py").write_text("class Mine: fixed = True\n")
    assert load_plugin(f"{tmp_path}/agent.py:Mine", kind="workflow").fixed


@each_row(
    ("base", "kind", "lacks"),
    [
        ("astune.algorithm.step_advantage:StepEstimator", "advantage", "__call__"),
        ("astune.backbone.base:Backbone", "backbone", "run"),
        ("astune.examples.method:ExampleMethod", "method", "read_episode, read_line, samples"),
        ("astune.methods.preferences:PreferenceMethod", "method", "read_line, slopes"),
    ],
)
def test_a_class_that_lacks_a_method_is_refused_by_name(base: str, kind: str, lacks: str, tmp_path: Path) -> None:
    module, _, name = base.partition(":")
    file = tmp_path / f"{name}.py"
    file.write_text(f"from {module} import {name}\nclass Mine({name}): pass\n")
    with pytest.raises(PluginError, match=f"{kind} '{file}:Mine' lacks {lacks}$"):
        load_plugin(f"{file}:Mine", kind=kind)
