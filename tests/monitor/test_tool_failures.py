"""Which tools a run says are dead, and which it does not."""

import io
from collections.abc import Sequence

import pytest

from astune.errors import TrainingError
from astune.monitor import Progress
from astune.monitor.progress import Learning
from astune.support.terminal import Console
from astune.types import UNKNOWN_TOOL, Episode, StopReason, Task, ToolUse, Turn

DEAD, WELL = ToolUse(4, 4, "no network"), ToolUse(4, 1, "bad arguments")
TRAINED = {"tokens/trained": 9.0, "episodes/total": 4.0}


class Played:
    """A run whose steps are given as the uses of tools by task."""

    def __init__(self, **limits: int) -> None:
        self._screen = Console(file=io.StringIO(), width=500)
        self._progress = Progress("plain", self._screen)
        self._learning = Learning(self._progress, 3, **limits)
        self._steps = 0

    def step(self, uses: dict[str, dict[str, ToolUse]], *, evaluation: bool = False) -> Sequence[str]:
        """The warnings that the step gives; it has two attempts at each task."""
        assert isinstance(self._screen.file, io.StringIO)
        before = len(self._screen.file.getvalue())
        self._steps += 1
        for task, tools in uses.items():
            for attempt in range(2):
                name = f"{'eval/greedy/' if evaluation else ''}{self._steps}/{task}/{attempt}"
                turn = Turn("a", (1,), (2,), (-0.1,), 0, "stop", tools=tuple({"function": {"name": n}} for n in tools))
                called = {name: use for name, use in tools.items() if use.calls}
                self._progress.episode_done(
                    Episode(name, Task(task, "q"), (turn,), (), StopReason.COMPLETED, tools=called)
                )
        if evaluation:
            self._progress.evaluation_done(self._steps, "greedy", {"reward": 0.5})
        else:
            self._progress.step_done(self._steps, TRAINED)
            self._learning.step_done(TRAINED)
        said = self._screen.file.getvalue()[before:].splitlines()
        return [line for line in said if line.startswith("warning") and "tool" in line]


def of(tool: ToolUse, *tasks: str, **others: ToolUse) -> dict[str, dict[str, ToolUse]]:
    return {task: {"search": tool, **others} for task in tasks}


@pytest.mark.fault(
    "Tools and environments",
    "A tool that worked fails in every call of a step, or of an evaluation",
    "A warning with its first message at the end of that step, again if it fails anew after it has worked; "
    "`astune.trainer.max_failed_tool_steps` ends the run",
)
@pytest.mark.parametrize("evaluation", [False, True])
def test_a_tool_that_worked_and_fails_for_a_whole_step_is_told_of_once_and_again_after_it_worked(
    evaluation: bool,
) -> None:
    run = Played()
    assert run.step(of(WELL, "a", "b", add=WELL)) == run.step(of(WELL, "a", "b", add=WELL), evaluation=True) == []
    partly = {**of(WELL, "a", add=WELL), **of(DEAD, "b", add=WELL)}  # it dies within the step
    assert run.step(partly, evaluation=evaluation) == []
    (told,) = run.step(of(DEAD, "c", "d", add=WELL), evaluation=evaluation)
    assert "search has worked before, and now all its 16 calls have failed (2 tasks), the first: no network" in told
    assert run.step(of(DEAD, "a", "b", add=WELL), evaluation=evaluation) == []
    assert run.step(of(WELL, "a", "b", add=WELL), evaluation=evaluation) == []
    assert len(run.step(of(DEAD, "a", "b", add=WELL), evaluation=evaluation)) == 1


def test_steps_of_one_task_or_of_few_calls_are_taken_together() -> None:
    run, few = Played(), ToolUse(1, 1, "gone")
    run.step(of(WELL, "a"))
    assert run.step(of(DEAD, "a")) == []  # it may be the task
    assert len(run.step(of(DEAD, "a"))) == 1
    run.step(of(WELL, "a"))
    assert [len(run.step(of(few, "a", "b"))) for _ in range(3)] == [0, 1, 0]


def test_a_tool_that_fails_for_some_tasks_is_not_dead_where_a_step_has_none_but_these() -> None:
    run = Played()
    for _ in range(20):
        assert run.step(of(WELL, "a") | of(DEAD, "c", "d") | of(WELL, "b")) == []
        assert run.step(of(DEAD, "c", "d")) == []
    assert [len(run.step(of(DEAD, *"abcd"))) for _ in range(6)].count(1) == 1  # but at last it is


def test_a_tool_that_is_offered_no_more_is_told_of_and_one_of_a_few_tasks_is_not() -> None:
    """AgentScope 2.x leaves out the tools of an MCP server that has died."""
    run = Played()
    for number in range(3):
        assert run.step({"a": {"search": WELL}, **({} if number else {"b": {"search": WELL, "rare": WELL}})}) == []
    (told,) = [*run.step({task: {} for task in "abcd"}), *run.step({task: {} for task in "ab"})]
    assert (
        "search has worked before, and now 8 episodes were not offered it (4 tasks), the first: not offered (4/a/0)"
        in told
    )


def test_held_out_tasks_at_which_a_tool_always_fails_or_is_not_offered_say_nothing_of_training() -> None:
    run = Played(max_failed_tool_steps=1)
    for _ in range(3):
        assert run.step(of(WELL, "a", "b", rare=WELL)) == []
        assert run.step(of(DEAD, "c", "d"), evaluation=True) == []


def test_a_tool_that_nobody_calls_and_one_that_there_is_not_are_not_dead() -> None:
    run = Played(max_failed_tool_steps=1)
    run.step(of(WELL, "a", "b"))
    assert run.step(of(ToolUse(), "a", "b")) == []
    (told,) = run.step({task: {UNKNOWN_TOOL: DEAD, "search": ToolUse()} for task in "ab"})
    assert f"all 8 calls of the tool {UNKNOWN_TOOL} have failed so far" in told


@pytest.mark.parametrize("worked", [True, False])
def test_the_key_ends_a_run_after_so_many_steps(worked: bool) -> None:
    run = Played(max_failed_tool_steps=2)
    if worked:
        run.step(of(WELL, "a", "b"))
    run.step(of(DEAD, "a", "b"))
    run.step(of(DEAD, "a", "b"), evaluation=True)
    with pytest.raises(TrainingError, match=r"tool search failed in 2 steps in a row \(.*\), the first with: no netw"):
        run.step(of(DEAD, "a", "b"))
