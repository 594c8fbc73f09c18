"""The notebook from an agent of AgentScope 2.x to the four cells runs, with few tasks and few steps."""

import shutil
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("agentscope")
pytest.importorskip("torch")
pytest.importorskip("gepa")
pytest.importorskip("nbclient")

import nbformat
from nbclient import NotebookClient

from astune.support.resources import tutorial_dir
from tutorial.prompt_then_weights import make_examples

pytestmark = pytest.mark.skipif(metadata.version("agentscope")[0] != "2", reason="the agent is for AgentScope 2.x")
NOTEBOOK = tutorial_dir() / "prompt_then_weights" / "four_cells.ipynb"


def outputs(notebook: nbformat.NotebookNode) -> str:
    return "".join(str(output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)


def test_the_notebook_goes_from_an_agent_to_the_four_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTUNE_SMALL", "1")
    monkeypatch.setenv("PYTHONPATH", str(tutorial_dir().parent))
    notebook = nbformat.read(shutil.copy(NOTEBOOK, tmp_path), as_version=4)
    try:
        NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    finally:
        make_examples.main()  # all of them again, for whoever trains in this checkout
    shown = outputs(notebook)
    for words in ("first prompt", "tuned prompt", "both, less the sum of each alone", "<svg"):
        assert words in shown
    folders = sorted(path.name for path in (tmp_path / "runs" / "four_cells").iterdir())
    assert {"solve", "solve-prompts", "solve-compare", "warm_up"} <= set(folders)


def test_the_notebook_that_ships_has_the_outputs_of_a_whole_run() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert "400 tasks" in outputs(notebook)
