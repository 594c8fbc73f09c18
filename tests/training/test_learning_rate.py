"""The learning rate of each update."""

from __future__ import annotations

import pytest

from astune.config.schema import TrainerConfig
from astune.training.schedule import learning_rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0]), ("linear", [0.5, 1.0, 1.0, 0.875]), ("cosine", [0.5, 1.0, 1.0, 0.9619])],
)
def test_learning_rate_schedules(schedule: str, expected: list[float]) -> None:
    trainer = TrainerConfig.model_validate({"learning_rate": 1.0, "warmup_steps": 2, "lr_schedule": schedule})
    assert [learning_rate(trainer, update, 10) for update in range(4)] == pytest.approx(expected, abs=1e-3)
