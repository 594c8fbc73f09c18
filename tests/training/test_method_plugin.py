"""A method from outside the package: that of CONTRIBUTING, and one with a hook before each update."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from astune.config.load import load_config
from astune.errors import ConfigError, PluginError
from astune.monitor.metrics import read_metrics
from tests.training.conftest import RunJob

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
HALVED = """
from dataclasses import replace

from astune.methods.rl import Rl


class Halved(Rl):
    async def before_update(self, learner, samples):
        halved = [replace(each, weights=tuple(weight / 2 for weight in each.weights)) for each in samples]
        return halved, {"halved": float(len(halved))}
"""


@pytest.fixture
def best_of(tmp_path: Path) -> str:
    """The method that CONTRIBUTING shows."""
    (code,) = re.findall(r"```python file=best_of.py\n(.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "best_of.py").write_text(code)
    return f"astune.algorithm.method={tmp_path / 'best_of.py'}:BestOf"


def test_the_method_of_the_recipe_learns_from_the_best_attempt_at_each_task(
    conf: Path, run_job: RunJob, best_of: str
) -> None:
    report = run_job(conf, best_of, "astune.monitor.check_invariants=true", "astune.trainer.total_steps=1")
    (row,) = [row for row in read_metrics(report.run_dir / "metrics.jsonl") if "episodes/total" in row]
    assert (row["episodes/total"], row["timelines/total"]) == (6, 6)
    assert row["tokens/trained"] == row["tokens/sampled"] / 3 and row["weight_sum"] == pytest.approx(1.0)
    assert row["tokens/dropped_worse"] == row["tokens/sampled"] * 2 / 3


def test_a_method_may_change_the_samples_of_each_update(conf: Path, run_job: RunJob, tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(HALVED)
    report = run_job(conf, f"astune.algorithm.method={tmp_path}/halved.py:Halved", "astune.trainer.total_steps=1")
    (row,) = [row for row in read_metrics(report.run_dir / "metrics.jsonl") if "episodes/total" in row]
    assert row["halved"] == row["timelines/total"] == 6.0


def test_a_method_says_which_keys_it_uses_and_who_trains_by_it(conf: Path, best_of: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.loss: only methods 'rl' and 'distill' have it"):
        load_config(conf, [best_of, "astune.algorithm.loss=gspo"])
    (tmp_path / "halved.py").write_text(HALVED)  # Trinity has a loop of its own, which would not call the hook
    with pytest.raises(ConfigError, match=r"algorithm\.method: got .*:Halved', which Trinity has not"):
        load_config(conf, [f"astune.algorithm.method={tmp_path}/halved.py:Halved"], backbone="trinity")


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (
            "sftt",
            ConfigError,
            r"'kto', 'rft' or 'distill', got 'sftt'\. Did you mean 'sft'",
        ),
        (
            "astune.types:Task",
            PluginError,
            "'astune.types:Task' is no method: expected a class that derives from",
        ),
        ("no_such.module:Method", PluginError, "there is no module 'no_such'"),
    ],
)
def test_what_is_no_method_is_told(conf: Path, method: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_config(conf, [f"astune.algorithm.method={method}"])


def test_a_method_that_ships_may_be_named_by_its_class(conf: Path) -> None:
    for name in ("rft", "Rft", "astune.methods.rft:Rft", "astune.algorithm.methods->Rft"):
        assert load_config(conf, [f"astune.algorithm.method={name}"]).config.astune.algorithm.method == "rft"
