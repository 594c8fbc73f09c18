"""`debug` and `local` make the golden samples. `trinity`: tests/trinity/test_equivalence.py; `verl`:
tests/verl/test_learner.py."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from astune.backbone.debug import DebugBackbone, debug_run
from astune.backbone.debug.sources.debug_model import DebugModel
from astune.backbone.debug.terminal import Terminal
from astune.backbone.debug.views.screen import Screen
from astune.backbone.local.engine import LocalBackbone
from astune.backbone.local.learning.learner import LocalLearner
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.support.resources import tiny_model_dir
from astune.support.terminal import Console
from astune.testing import ScriptedPolicy
from astune.types import Episode, Group, Sample, Update
from tests.agents.golden import golden_text
from tests.backbone.golden_samples import FILE, Term, assert_trained, golden, replayed, rows_of, steps


def trained_by(learner: LocalLearner, samples: Sequence[Sample]) -> Iterator[Term]:
    for batch in learner.batches(samples):
        places = (batch.positions[0][batch.predictors[batch.source]] + 1).tolist()
        credit = (batch.advantage * batch.weight).tolist()
        rows = zip(places, batch.row.tolist(), batch.target.tolist(), batch.sampled.tolist(), credit, strict=True)
        for place, row, token, logprob, each in rows:
            ids = tuple(samples[batch.samples[row]].timeline.token_ids)
            yield Term(ids[:place], token, logprob, each)


@pytest.mark.parametrize("step", steps())
def test_local_trains_the_golden_samples(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sample] = []
    terms: list[Term] = []

    async def update(self: LocalLearner, samples: Sequence[Sample], learning_rate: float) -> Update:
        made.extend(samples)
        terms.extend(trained_by(self, samples))
        return Update({"loss": 0.0})

    monkeypatch.setattr(LocalLearner, "update", update)
    report = LocalBackbone().run(replayed(tmp_path, monkeypatch, step, backbone="local"))
    assert (report.status, report.steps) == ("completed", 1)
    if os.environ.get("REGENERATE"):
        known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
        FILE.write_text(golden_text({**known, step: rows_of(made)}), encoding="utf-8")
    assert rows_of(made) == golden(step)
    assert_trained(terms, step)


def test_debug_makes_the_golden_samples_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes each task for a step of its own."""
    (group,) = steps()["a task"]
    made: list[Sample] = []

    async def recorded(*_: object, on_episode: Callable[[Episode], None], **__: object) -> Group:
        for episode in group.episodes:
            on_episode(episode)
        return group

    monkeypatch.setattr(debug_run, "run_group", recorded)
    monkeypatch.setattr(Screen, "group_done", lambda self, group, samples, name: made.extend(samples))
    console, chat_format = Console(file=io.StringIO()), ChatFormat.load(tiny_model_dir())
    model = DebugModel("nobody", ScriptedPolicy([], chat_format), chat_format)
    backbone = DebugBackbone(console, Terminal(console, []), model)
    report = backbone.run(replayed(tmp_path, monkeypatch, "a task", backbone="debug"))
    assert report.summary["episodes"] == len(group.episodes)
    assert rows_of(made) == golden("a task")
