"""A hint of what would have been better teaches the model as a prompt of its teacher, which it is itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch")
from astune.backbone.local.engine import load_engine
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, add
from astune.online.training.hints import with_hint
from astune.store import tables
from astune.store.database import open_database
from astune.training.engine import Engine
from astune.types import Sample, Sampling, Span, Timeline
from tests.online.training.world import World, config_of

MESSAGES = [{"role": "user", "content": "Theo has 3 pens. How many pens does Theo have?"}]
HINT = "Use the calculator."


def logprobs(engine: Engine, prompt: Sequence[int], output: Sequence[int]) -> Sequence[float]:
    start, stop = len(prompt), len(prompt) + len(output)
    line = Timeline("agent", [*prompt, *output], (Span(0, start, stop, 0, 1.0, True, [0.0] * len(output)),))
    return asyncio.run(engine.learner.logprobs([Sample(line, (1.0,), (1.0,), "t", "e")]))[0]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_tokens_that_the_hint_makes_likelier_get_likelier_without_it(weight: float, tmp_path: Path) -> None:
    config = config_of(astune={"trainer": {"learning_rate": 3e-5}}, weight_hints=weight, max_kl=1.0)
    with closing(open_database(f"sqlite:///{tmp_path}/online.db")) as database:
        world = World(database, tmp_path, config, load_engine)
        engine = load_engine(config.astune)
        plain = PromptBuilder(engine.chat_format).build("agent", MESSAGES).ids
        hinted = PromptBuilder(engine.chat_format).build("agent", with_hint(MESSAGES, HINT)).ids
        said = asyncio.run(engine.policy.generate(plain, Sampling(max_tokens=8, seed=1)))
        before = logprobs(engine, plain, said.output_ids)
        ahead = [b - a for a, b in zip(before, logprobs(engine, hinted, said.output_ids), strict=True)]
        world.answer("m", messages=MESSAGES, prompt=plain, output=said.output_ids, logprobs=said.logprobs)
        part = FeedbackPart("number", value=0.0)
        new = NewFeedback(world.now, "judge:follow:x", "", (part,), ("m",), hint=HINT)
        with database.writing() as connection:
            add(connection, new, config.astune.online.feedback)
        row = world.commit()
        if not weight:
            assert row.state == "empty"
            return
        assert row.state == "made", row
        (version,) = [each for each in world.rows(tables.versions) if each["version"] == 1]
        engine.learner.load(tmp_path / "versions" / version["folder"])
        moved = [b - a for a, b in zip(before, logprobs(engine, plain, said.output_ids), strict=True)]
        assert sum(a * m for a, m in zip(ahead, moved, strict=True)) > 0.0
        (learned,) = world.rows(tables.samples)
        assert (learned["method"], learned["tokens"]) == ("distill", len(said.output_ids))
        assert learned["turn_id"] is not None
