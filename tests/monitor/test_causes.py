from __future__ import annotations

import io
import traceback

import pytest

from astune.monitor import Progress
from astune.monitor.causes import Causes, cause_of
from astune.support.terminal import Console
from astune.types import Episode, EpisodeError, RunReport, StopReason, Task, Verdict

TASK = Task("t", "q")


def failed(number: int, error: EpisodeError | None, stop: StopReason = StopReason.ERROR) -> Episode:
    return Episode(f"train/1/t/{number}", TASK, (), (), stop, error=error)


def raised_here(message: str) -> EpisodeError:
    try:
        raise KeyError(message)
    except KeyError as error:
        return EpisodeError("workflow", "KeyError", str(error), "".join(traceback.format_exception(error)))


@pytest.mark.fault(
    "What a run says",
    "Every episode fails, with few distinct errors",
    "Each distinct error once on the terminal, with file and line; counts in the table at the end",
)
def test_each_distinct_error_is_shown_once_with_its_line_and_counted_at_the_end() -> None:
    screen = Console(file=io.StringIO(), width=300)
    with Progress("plain", screen) as progress:
        for number in range(5):
            progress.episode_done(failed(number, raised_here(f"price of {number}")))
        progress.episode_done(failed(5, EpisodeError("policy", "PolicyError", "the engine\nis gone")))
        assert isinstance(screen.file, io.StringIO)
        lines = screen.file.getvalue().splitlines()
        assert len(lines) == 2
        assert "train/1/t/0: workflow: KeyError: 'price of 0' (" in lines[0] and "test_causes.py:" in lines[0]
        assert lines[1].endswith("train/1/t/5: policy: PolicyError: the engine is gone")
        assert [count for _, count in progress.causes.most] == [5, 1]


def test_errors_without_a_place_are_equal_if_only_their_numbers_differ() -> None:
    causes = Causes()
    for seconds in (1, 20):
        causes.add(failed(seconds, EpisodeError("judge", "JudgeError", f"no answer after {seconds} s")))
    causes.add(failed(3, EpisodeError("judge", "JudgeError", "refused")))
    assert [(cause.message, count) for cause, count in causes.most] == [("no answer after 1 s", 2), ("refused", 1)]


def test_a_judged_episode_and_one_that_was_cut_off_have_no_cause() -> None:
    assert cause_of(Episode("e", TASK, (), (), StopReason.MAX_TURNS, verdict=Verdict(0.0))) is None
    assert cause_of(failed(0, None, StopReason.CANCELLED)) is None


def test_an_episode_that_ended_well_and_was_judged_by_nobody_has_a_cause() -> None:
    cause = cause_of(failed(0, None, StopReason.MAX_TURNS))
    assert cause is not None and str(cause) == "judge: no verdict: nobody judged the episode"


def test_only_the_first_causes_are_shown_as_they_appear() -> None:
    screen = Console(file=io.StringIO(), width=200)
    with Progress("plain", screen) as progress:
        for name in "abcdefghijklmno":
            progress.episode_done(failed(0, EpisodeError("workflow", "ValueError", name)))
    assert isinstance(screen.file, io.StringIO)
    assert len(screen.file.getvalue().splitlines()) == 11 and len(progress.causes.most) == 15


def test_the_final_table_names_causes_and_why_nothing_was_learned(run_dir) -> None:
    from astune.monitor import summarize

    screen = Console(file=io.StringIO(), width=300)
    row = {"step": 1, "episodes/total": 1.0, "episodes/failed": 1.0, "episodes/unjudged": 1.0, "tokens/trained": 0.0}
    with Progress("plain", screen) as progress:
        progress.episode_done(failed(0, raised_here("price")))
        progress.run_finished(RunReport(run_dir.path, 1, "learned_nothing", summarize([row])))
    assert isinstance(screen.file, io.StringIO)
    table = screen.file.getvalue()
    assert "Nothing was learned after 1 steps" in table and "no episode was judged" in table
    assert "1 times workflow: KeyError: 'price' (" in table
