"""The long form is a tool: `make attack`. Here each part runs for a few seconds, and must be able to fail."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.attack import attack, doors, hostile, kills_of_families, load, online
from tests.attack.found import Found


def failed(found: Iterable[Found]) -> list[Found]:
    rows = list(found)
    assert len(rows) > 5
    return [row for row in rows if row.passed is not True]


@pytest.mark.fault("Agents and the engine", "hostile agents beside honest ones", "the honest ones get the same tokens")
def test_hostile_agents_change_nothing_for_honest_ones() -> None:
    kinds = ("raises", "exits", "blocks shortly", "returns None", "a reward that is NaN", "a judge of NaN")
    assert failed(hostile.attack(kinds, steps=1)) == []


@pytest.mark.fault(
    "The OpenAI-compatible endpoint", "clients that misbehave beside others", "no call of another is lost"
)
def test_no_call_is_lost_under_load() -> None:
    slow = {"load: memory stays", "load: the loop stays free (list of models)"}  # depend on the machine
    assert [row for row in failed(load.attack(3.0, sessions=64)) if row.row not in slow] == []


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "malformed HTTP, JSON and fields, over raw sockets",
    "a status of its kind, never a 500; others are served meanwhile; no connection is left open",
)
def test_a_malformed_request_gets_a_status_of_its_kind() -> None:
    minute = 60.0  # the machine may be busy with other tests; the long form has limits
    assert failed(doors.attack(("gateway", "environment"), patient=False, most=minute)) == []


@pytest.mark.release  # in CI: tests/training/test_any_order, and backbone/local/test_stages with real weights
@pytest.mark.fault(
    "Runs and resuming",
    "a run is killed (SIGKILL) at random moments, again and again, and resumed",
    "checkpoints, figures and episodes are those of a run that was never stopped, bit for bit; `make attack` does it "
    "twenty times to each family of training",
)
def test_a_run_killed_at_random_moments_ends_as_if_never_stopped() -> None:
    families = {"GRPO": kills_of_families.FAMILIES["GRPO"]}
    assert [row for row in kills_of_families.attack(families, kills=3, seed=1, steps=3) if row.passed is not True] == []


@pytest.mark.release  # in CI: tests/online/service/test_killed, training/test_any_order and release/test_releaser
@pytest.mark.fault(
    "Online training",
    "`serve`, `train`, `release` of `astune online`, or all, are killed (SIGKILL) at random moments under load",
    "every acknowledged answer and reward is in the store, trained at most once, or it is said why not; "
    "assignments are exact, no user's arm flips, aliases and folders are right; `make attack` does it twenty times "
    "to each",
)
def test_what_online_training_acknowledged_outlasts_kills() -> None:
    assert failed(online.attack_by_kills(kills=1, sessions=4, seed=1)) == []


def test_a_row_that_fails_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Found("a", True, ""), Found("b", None, "not there")]
    assert attack.show(rows, seed=3) == 0
    assert attack.show([*rows, Found("c", False, "[broke]")], seed=3) == 1
    assert "[broke]" in capsys.readouterr().out
