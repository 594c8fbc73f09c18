from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.evaluation import FAMILIES
from astune.monitor.summary import decodings, figures_in
from astune.rollout.metrics import evaluation_metrics, figures_of
from astune.support.statistics import MeanOverTasks, estimate
from astune.types import Episode, Group, StopReason, Task, ToolUse, Verdict, WorkflowOutput


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


NUMBERS = st.integers(-3, 3).map(float)
NAMES = st.sampled_from(["depth", "depth_low", "depth_tasks", "part/depth", "success"])
METRICS = st.dictionaries(NAMES, NUMBERS, max_size=3)


@st.composite
def attempts(draw: st.DrawFn, name: str, task: Task) -> Episode:
    """An attempt that may have failed, whose judge, workflow, agents and tools may each say something or nothing."""
    verdict = draw(st.none() | st.builds(Verdict, NUMBERS, st.none() | st.booleans(), metrics=METRICS))
    uses = st.dictionaries(st.sampled_from(["search", "book"]), st.builds(ToolUse, st.integers(1, 3), st.just(1)))
    turns = draw(st.integers(0, 4))
    told: dict[str, float] = draw(st.sampled_from([{}, {"tool_calls": 0.0}]))
    return Episode(
        name,
        task,
        (),
        (),
        StopReason.COMPLETED,
        output=draw(st.none() | st.builds(WorkflowOutput, st.just("4"), metrics=METRICS)),
        verdict=verdict,
        metrics={"turns": float(turns), "prompt_tokens": 9.0 * turns, "output_tokens": 2.0 * turns, **told},
        agent_rewards=draw(METRICS),
        tools=draw(uses) if told else {},
    )


@st.composite
def played(draw: st.DrawFn) -> list[Group]:
    tasks = [Task(f"t{number}", "q") for number in range(draw(st.integers(0, 5)))]
    return [
        Group(task, tuple(draw(attempts(f"e/{task.task_id}/{n}", task)) for n in range(draw(st.integers(1, 3)))))
        for task in tasks
    ]


def told_of(episode: Episode, figure: str) -> float | None:
    """The figure of an attempt, read anew; None where it has none."""
    if episode.verdict is None:
        return None
    family = next((family for family in FAMILIES if figure.startswith(family)), "")
    own = {} if episode.output is None else episode.output.metrics
    if family.startswith("tools/"):
        use = episode.tools.get(figure.removeprefix(family), ToolUse())
        return None if "tool_calls" not in episode.metrics else float(use.calls if "calls" in family else use.errors)
    if family:
        given = {"judge/": episode.verdict.metrics, "agent_reward/": episode.agent_rewards, "workflow/": own}
        return given[family].get(figure.removeprefix(family))
    uses = episode.tools.values() if "tool_calls" in episode.metrics else None
    return {
        "reward": episode.verdict.reward,
        "success": None if episode.verdict.passed is None else float(episode.verdict.passed),
        "turns": episode.metrics["turns"],
        "tokens/prompt": episode.metrics["prompt_tokens"],
        "tokens/sampled": episode.metrics["output_tokens"],
        "tools/calls": None if uses is None else float(sum(use.calls for use in uses)),
        "tools/errors": None if uses is None else float(sum(use.errors for use in uses)),
    }[figure]


def every_figure(groups: list[Group]) -> Iterator[str]:
    yield from ("reward", "success", "turns", "tokens/prompt", "tokens/sampled", "tools/calls", "tools/errors")
    names = ("depth", "depth_low", "depth_tasks", "part/depth", "success")
    yield from (f"{family}{name}" for family in ("judge/", "workflow/", "agent_reward/") for name in names)
    called = {name for group in groups for episode in group.episodes for name in episode.tools}
    yield from (f"tools/{what}/{name}" for what in ("calls", "errors") for name in called)


@given(played())
def test_each_figure_is_the_mean_over_tasks_of_the_attempts_that_have_it(groups: list[Group]) -> None:
    found = figures_of(groups)
    for figure in every_figure(groups):
        means = []
        for group in groups:
            told = [value for each in group.episodes if (value := told_of(each, figure)) is not None]
            if told:
                means.append(math.fsum(told) / len(told))
        assert found.get(figure) == (estimate(means, share=figure == "success") if means else None), figure
    assert {figure for figure in found if not figure.startswith("pass_at_")} <= set(every_figure(groups))


@given(played(), st.sampled_from(["greedy", "hard/sampled"]))
def test_figures_are_read_back_as_they_were_logged(groups: list[Group], evaluation: str) -> None:
    """A name that is both a metric and the end of another one's interval is the metric's."""
    row = {f"eval/{evaluation}/{name}": value for name, value in evaluation_metrics(groups, 1.0).items()}
    assert decodings([{"step": 1, **row}]) == [evaluation]
    found, back = figures_of(groups), figures_in(row, evaluation)
    for figure, told in back.items():
        of = [end for end in ("low", "tasks") if f"{figure}_{end}" in found]
        interval, n = None if "low" in of else found[figure].interval, 0 if "tasks" in of else found[figure].n
        assert told == MeanOverTasks(found[figure].mean, interval, n), figure
    assert back.keys() == found.keys()
    assert figures_in(row, "hard/greedy") == {}


def test_a_share_of_a_judge_that_ships_has_an_exact_interval_where_all_are_equal() -> None:
    def judged(name: str) -> MeanOverTasks:
        verdict = Verdict(1.0, True, metrics={name: 1.0})
        groups = [group(str(n), True) for n in range(5)]
        played = [Group(g.task, (replace(g.episodes[0], verdict=verdict),)) for g in groups]
        return figures_of(played)[f"judge/{name}"]

    assert judged("answer_found").interval == (pytest.approx(0.025**0.2), 1.0)
    assert judged("length").interval is None


def test_a_run_of_before_there_were_intervals_has_no_figures() -> None:
    assert figures_in({"step": 1, "eval/greedy/success": 0.5, "eval/greedy/seconds": 2.0}, "greedy") == {}
