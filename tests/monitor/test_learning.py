from __future__ import annotations

import io
from typing import Any

import pytest

from astune.errors import TrainingError
from astune.monitor import Progress
from astune.monitor.nothing_learned import idle_steps, nothing_learned, why_nothing
from astune.monitor.progress import Learning
from astune.support.terminal import Console
from tests.rows import each_row

TRAINED = {"tokens/trained": 40.0, "episodes/total": 8.0, "episodes/unjudged": 2.0, "turns/total": 8.0}
EQUAL = {
    "tokens/trained": 0.0,
    "tokens/dropped_no_signal": 40.0,
    "episodes/total": 8.0,
    "episodes/unjudged": 0.0,
    "turns/total": 8.0,
    "groups/used": 0.0,
    "groups/no_signal": 2.0,
}
UNJUDGED = {**EQUAL, "episodes/unjudged": 8.0}
NO_CALLS = {**EQUAL, "turns/total": 0.0, "tokens/dropped_no_signal": 0.0}
GREEDY = {**EQUAL, "turns/left_out_greedy": 8.0}


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=300)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.mark.fault("What a run says", "All attempts at each task get the same reward", "A warning with the advice")
@pytest.mark.fault("What a run says", "The workflow never calls the model", "A warning with the advice")
@pytest.mark.fault("What a run says", "Every answer is drawn greedily", "A warning with the advice")
@each_row(
    ("row", "reason", "advice"),
    [
        (EQUAL, "no_signal", "astune.rollout.temperature"),
        ({**EQUAL, "success/mean": 0.0}, "all_wrong", "astune check-tasks"),
        ({**EQUAL, "success/mean": 1.0}, "all_right", "harder tasks"),
        ({**EQUAL, "groups/no_signal": 8.0}, "one_attempt", "astune.rollout.num_repeat"),
        (NO_CALLS, "no_calls", "tuner.model"),
        (GREEDY, "greedy", "temperature=0"),
        ({**EQUAL, "turns/left_out_greedy": 2.0}, "no_signal", "astune.rollout.temperature"),
        ({**EQUAL, "tokens/dropped_frozen": 300.0, "turns/left_out_frozen": 7.0}, "no_signal", "num_repeat"),
        ({**EQUAL, "turns/left_out_frozen": 8.0}, "frozen", "trainable=False"),
        ({**EQUAL, "turns/left_out_frozen": 6.0, "turns/left_out_greedy": 2.0}, "greedy", "temperature=0"),
        ({**EQUAL, "tokens/dropped_skipped_update": 300.0}, "skipped_update", "learning_rate"),
        (UNJUDGED, "unjudged", "astune doctor"),
    ],
)
def test_a_step_that_taught_nothing_is_told_why_and_what_to_do(row: dict[str, float], reason: str, advice: str) -> None:
    why = why_nothing(row)
    assert why is not None and why.reason == reason and advice in why.advice


@pytest.mark.parametrize("row", [TRAINED, {"eval/greedy/reward": 1.0}, {"loss": None}])
def test_a_step_that_trained_and_a_line_of_something_else_have_no_reason(row: dict[str, Any]) -> None:
    assert why_nothing(row) is None


def test_a_run_learned_nothing_if_none_of_its_steps_did() -> None:
    evaluation = {"eval/greedy/reward": 0.5}
    why = nothing_learned([evaluation, EQUAL, NO_CALLS, EQUAL, evaluation])
    assert why is not None and why.reason == "no_signal"
    assert nothing_learned([EQUAL, TRAINED]) is None
    assert nothing_learned([evaluation]) is None
    assert [(why.reason, count) for why, count in idle_steps([EQUAL, TRAINED, NO_CALLS, EQUAL])] == [
        ("no_signal", 2),
        ("no_calls", 1),
    ]


def test_steps_in_a_row_without_signal_are_warned_of_once(screen: Console) -> None:
    learning = Learning(Progress("plain", screen), max_unjudged_steps=3)
    for row in (EQUAL, EQUAL, TRAINED, EQUAL, EQUAL):
        learning.step_done(row)
    assert "warning" not in text_of(screen)
    for _ in range(5):
        learning.step_done(EQUAL)
    assert text_of(screen).count("warning") == 1
    assert "nothing was learned in the last 3 steps: all attempts at a task got the same reward" in text_of(screen)


@pytest.mark.fault(
    "What a run says",
    "No episode of three steps in a row can be judged",
    "The run saves, stops with exit code 1 and names the error met most often",
)
def test_a_run_in_which_nothing_can_be_judged_is_stopped(screen: Console) -> None:
    learning = Learning(Progress("plain", screen), max_unjudged_steps=3)
    for row in (UNJUDGED, UNJUDGED, EQUAL, UNJUDGED, UNJUDGED):
        learning.step_done(row)
    with pytest.raises(TrainingError, match=r"in 3 steps in a row \(astune.trainer.max_unjudged_steps\)"):
        learning.step_done(UNJUDGED)


def test_a_run_goes_on_without_verdicts_if_it_is_told_to(screen: Console) -> None:
    learning = Learning(Progress("plain", screen), max_unjudged_steps=0)
    for _ in range(9):
        learning.step_done(UNJUDGED)
    assert text_of(screen).count("nothing was learned in the last 3 steps: no episode was judged") == 1
