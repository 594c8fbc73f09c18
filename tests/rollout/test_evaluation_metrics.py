from __future__ import annotations

import pytest

from astune.rollout.evaluation_metrics import evaluation_metrics
from astune.types import Episode, Group, StopReason, Task, Verdict


def group(task: str, *passed: bool | None, reward: float | None = None) -> Group:
    """One attempt for each of `passed`; None is one that was not judged."""
    verdicts = [None if each is None else Verdict(float(each) if reward is None else reward, each) for each in passed]
    episodes = [
        Episode(f"e/{task}/{n}", Task(task, "q"), (), (), StopReason.COMPLETED, verdict=verdict)
        for n, verdict in enumerate(verdicts)
    ]
    return Group(Task(task, "q"), tuple(episodes))


def test_a_task_counts_once_however_many_of_its_attempts_were_judged() -> None:
    found = evaluation_metrics([group("a", True, True, True, False), group("b", False, None, None, None)], 2.0)
    assert found["success"] == found["reward"] == pytest.approx((0.75 + 0.0) / 2)
    assert (found["tasks"], found["attempts"], found["unjudged"], found["seconds"]) == (2.0, 8.0, 3.0, 2.0)
    assert (found["pass_at_2"], found["pass_at_2_tasks"]) == (1.0, 1.0)
    assert found["pass_at_4_tasks"] == 1.0 and "pass_at_8" not in found
    assert found["success_low"] <= found["success"] <= found["success_high"]


def test_one_attempt_gives_the_plain_mean_and_no_pass_at_k() -> None:
    groups = [group(str(n), n % 3 == 0) for n in range(10)]
    found = evaluation_metrics(groups, 0.0)
    assert found["success"] == 4 / 10 and found["success_tasks"] == 10.0
    assert not any(name.startswith("pass_at") for name in found)


def test_what_nobody_knows_has_no_figure_but_its_count() -> None:
    found = evaluation_metrics([group("a", None), group("b", None)], 0.0)
    assert not {"success", "reward", "success_tasks"} & set(found)
    assert (found["tasks"], found["attempts"], found["unjudged"]) == (2.0, 2.0, 2.0)
    assert evaluation_metrics([], 0.0)["tasks"] == 0.0


def test_equal_rewards_tell_nothing_of_their_spread() -> None:
    found = evaluation_metrics([group(str(n), True, reward=0.3) for n in range(5)], 0.0)
    assert "reward_low" not in found and found["success_high"] == 1.0 and 0.4 < found["success_low"] < 0.6
