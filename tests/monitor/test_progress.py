import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from astune.monitor import Progress, summarize
from astune.monitor.progress_view import sparkline, status_panel
from astune.support.terminal import Console
from astune.types import Episode, RunReport, StopReason, Task, ToolUse, Turn, Verdict

STEP = {
    "reward/mean": 0.25,
    "success/mean": 0.25,
    "loss": -0.01,
    "groups/used": 3,
    "groups/no_signal": 1,
    "episodes/total": 8,
    "episodes/failed": 1,
    "stop/completed": 7,
    "stop/timeout": 1,
    "tokens/sampled": 1000,
    "tokens/trained": 900,
    "tokens/dropped_no_signal": 70,
    "tokens/dropped_frozen": 30,
    "tokens/flattened": 6000,
    "tokens/unique": 4000,
    "turns/total": 24,
    "turns/truncated": 2,
    "calls/lost": 1,
    "timelines/total": 12,
    "forks/branch": 3,
    "forks/reasoning_stripped": 4,
    "policy_age/mean": 0.5,
    "policy_age/max": 1,
    "weight_sum": 1.0,
    "time/rollout": 60.0,
    "time/train": 30.0,
    "time/step": 100.0,
    "throughput/tokens_per_second": 1234.5,
}


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=120)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def episode(reward: float) -> Episode:
    turn = Turn("a", (1,), (2, 3), (-0.1, -0.1), 0, "stop")
    return Episode("e", Task("t", "q"), (turn,), (), StopReason.COMPLETED, verdict=Verdict(reward))


def test_elsewhere_than_on_a_terminal_each_step_is_one_line_without_escape_codes(screen):
    with Progress("auto", screen) as progress:
        progress.phase_started("rollout", 8)
        progress.episode_done(episode(1.0))
        progress.step_done(1, STEP)
        progress.step_done(2, STEP)
    lines = text_of(screen).splitlines()
    assert [line.split("  ")[:2] for line in lines] == [["step 1/0", "reward 0.250"], ["step 2/0", "reward 0.250"]]
    assert "1,234 tokens/s" in lines[0] and "1 failed" in lines[0]
    assert "\x1b" not in text_of(screen)


def test_a_step_tells_what_its_agents_got_of_their_own(screen):
    own = {f"agent_reward/{agent}": float(place) for place, agent in enumerate(["a [red]", "b", "c", "d", "e", "f"])}
    with Progress("plain", screen) as progress:
        progress.step_done(1, {**STEP, **own})
    assert "reward 0.250 (a [red] +0.00, b +1.00, c +2.00, d +3.00, 2 more)" in " ".join(text_of(screen).split())


def test_time_left_is_the_remaining_steps_at_the_pace_of_the_last_ones(screen, make_config, run_dir):
    with Progress("plain", screen) as progress:
        progress.run_started(make_config(), run_dir, total_steps=4)
        progress.step_done(1, STEP)
    assert "5:00 left" in text_of(screen)


@pytest.mark.fault("What a run says", "figures are missing or not finite", "the progress goes on without them")
def test_figures_that_are_missing_or_not_finite_do_not_stop_a_run(screen):
    with Progress("plain", screen) as progress:
        progress.step_done(1, {"reward/mean": math.nan})
        progress.step_done(2, {})
    assert "reward nan" in text_of(screen)


@pytest.mark.fault("What a run says", "nothing of an evaluation could be judged", "the progress line says so")
def test_an_evaluation_of_which_nothing_was_judged_is_told_and_no_crash(screen):
    with Progress("plain", screen) as progress:
        progress.evaluation_done(6, "greedy", {"unjudged": 4.0, "seconds": 1.0})
    assert "no episode was judged" in text_of(screen)


def test_off_says_nothing(screen, run_dir):
    with Progress("off", screen) as progress:
        progress.step_done(1, STEP)
        progress.evaluation_done(1, "greedy", {"eval/greedy/success": 1.0})
        progress.note("x")
        progress.run_finished(RunReport(run_dir.path, 1, "completed", summarize([])))
    assert text_of(screen) == ""


def test_bars_show_step_reward_and_speed_while_running():
    screen = Console(file=io.StringIO(), width=100, force_terminal=True, force_interactive=True)
    with Progress("auto", screen) as progress:
        progress._state.total_steps = 9
        progress.phase_started("rollout", 8)
        progress.episode_done(episode(1.0))
        progress.step_done(3, STEP)
        with screen.capture() as shown:
            screen.print(status_panel(progress._state))
    text = shown.get()
    assert "step 3/9" in text and "10:00 left" in text and "rollout 1/8" in text and "reward 0.250" in text


@pytest.mark.fault("What people see", "a message holds markup of the terminal", "it is shown as it is")
def test_markup_in_a_note_is_shown_as_it_is(screen):
    Progress("plain", screen).note("[red]not a colour[/]")
    assert "[red]not a colour[/]" in text_of(screen)


def test_the_final_table_tells_before_after_best_failures_and_time(screen):
    metrics = [
        {"step": 0, "eval/greedy/success": 0.4, "eval/greedy/seconds": 10.0},
        {"step": 1, **STEP},
        {"step": 1, "eval/greedy/success": 0.9, "eval/greedy/seconds": 10.0},
        {"step": 2, **STEP},
        {"step": 2, "eval/greedy/success": 0.8, "eval/greedy/seconds": 10.0},
    ]
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 2, "completed", summarize(metrics)))
    text = text_of(screen)
    assert "success, greedy   40.0 %   80.0 %   90.0 % step 1" in text
    assert "16, 2 failed (timeout 2)" in text
    assert "rollout 2:00 (52 %)" in text and "evaluation 30 s (13 %)" in text
    assert "6 of 8 groups had something to learn from" in text


def test_the_final_table_tells_what_judging_cost(screen):
    judged = {"judging/calls": 100, "judging/cached": 20, "judging/tokens": 5000, "judging/cost": 0.25}
    held_out = {f"eval/greedy/judging_{name}": 10.0 for name in ("calls", "cached", "tokens")}
    metrics = [{"step": 1, **STEP, **judged}, {"step": 1, **held_out, "eval/greedy/judging_cost": 0.05}]
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 1, "completed", summarize(metrics)))
    line = "judging       110 calls of other models, 30 replies from the cache, 5,010 tokens, cost "
    assert line + "0.3" in text_of(screen)
    metrics[1] |= {"eval/greedy/judging_cost": None}
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 1, "completed", summarize(metrics)))
    assert line + "not known" in text_of(screen)


def test_the_final_table_is_a_receipt_of_every_token(screen):
    metrics = [{"step": step, **STEP} for step in (1, 2)]
    metrics[1] |= {"policy_age/mean": 1.0, "policy_age/max": 3}
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 2, "completed", summarize(metrics)))
    text = text_of(screen)
    for line in (
        "model calls   48 in 24 training rows, 4 cut off by a token limit, 2 more without an answer",
        "tokens        2,000 sampled, 1,800 trained, left out: no_signal 140, frozen 60",
        "forks         reasoning_stripped 8, branch 6",
        "rows          12,000 tokens, 1.50 times the 8,000 distinct",
        "policy age    0.75 updates between sampling and training, at most 3",
        "loss weights  sum to 1 in each of the 2 steps that trained",
    ):
        assert line in text


def test_the_receipt_of_an_on_policy_run_with_constant_weights_and_inexact_tokens(screen):
    change = {"policy_age/mean": 0.0, "policy_age/max": 0, "weight_sum": 0.25, "tokens/trained_inexact": 9}
    metrics = [{"step": 1, **STEP, **change}, {"step": 2, **STEP, "tokens/trained": 0, "weight_sum": 0.0}]
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 2, "completed", summarize(metrics)))
    text = text_of(screen)
    assert "0: all trained on the policy that sampled them" in text
    assert "sum to 0.25 (" in text and "(9 of them inexact)" in text


@pytest.mark.fault(
    "What a run says", "the attempts at every task are rewarded alike", "the final table says that nothing was learned"
)
def test_a_run_whose_groups_never_differ_in_reward_says_that_nothing_was_learned(screen):
    metrics = [{"step": 1, **STEP, "groups/used": 0, "groups/no_signal": 4}]
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 1, "completed", summarize(metrics)))
    assert "0 of 4 groups had something to learn from: nothing was learned" in text_of(screen)


def test_a_stopped_run_says_how_to_go_on(screen):
    Progress("plain", screen).run_finished(RunReport(Path("runs/x"), 0, "interrupted", summarize([])))
    assert "--resume" in text_of(screen)


def test_a_long_curve_is_averaged_into_the_width():
    assert len(sparkline([float(i) for i in range(100)], width=24)) <= 24
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_a_tool_that_always_fails_is_told_of_once_after_some_calls(screen):
    broken = replace(episode(1.0), tools={"search": ToolUse(3, 3, "no network"), "add": ToolUse(9, 8, "x")})
    with Progress("plain", screen) as progress:
        for _ in range(6):
            progress.episode_done(broken)
    assert text_of(screen).splitlines() == [
        "warning all 9 calls of the tool search have failed so far, as here: no network"
    ]


def test_calls_that_cannot_be_read_are_told_of_once_where_there_are_many(screen, run_dir):
    one = episode(1.0)
    unread = replace(one.turns[0], unread=True, response={"role": "assistant", "content": "<tool_call>{oops"})
    called = replace(one.turns[0], response={"role": "assistant", "tool_calls": [{}]})
    with Progress("plain", screen) as progress:
        for turns in ((unread, called, called), *[(called,)] * 80, *[(unread,)] * 10):
            progress.episode_done(replace(one, turns=turns))
        rows = [{**STEP, "step": 1, "calls/unread": 11.0, "calls/unread_cut": 2.0}]
        progress.run_finished(RunReport(run_dir.path, 1, "completed", summarize(rows)))
    (warning,) = [line for line in text_of(screen).splitlines() if line.startswith("warning")]
    assert warning.startswith("warning 10 of 92 answers that meant to call a tool have call marks and no call")
    assert "'<tool_call>{oops'" in warning
    assert "11 answers with call marks and no call (2 of them cut off)" in " ".join(text_of(screen).split())


def test_the_table_says_which_tools_failed_and_what_blocked(screen, run_dir):
    row = {**STEP, "step": 1, "tools/calls/search": 40.0, "tools/errors/search": 40.0, "tools/calls/add": 3.0}
    rows = [{**row, "tools/errors/add": 0.0, "blocked/agent.py:12": 7.0, "blocked/agent.py:9": 0.3}]
    with Progress("plain", screen) as progress:
        progress.run_finished(RunReport(run_dir.path, 1, "completed", summarize(rows)))
    shown = text_of(screen)
    assert "40 of 40 calls of search failed" in shown and "agent.py:12 7 s" in shown and "agent.py:9" not in shown


def test_what_a_run_shows_is_chinese_where_the_locale_asks_for_it(screen, make_config, run_dir, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    figures = {"success": 0.4, "success_low": 0.3, "success_high": 0.5, "tasks": 9.0, "attempts": 9.0, "unjudged": 0.0}
    metrics = [{"step": 0, **{f"eval/greedy/{name}": value for name, value in figures.items()}}, {"step": 1, **STEP}]
    with Progress("plain", screen) as progress:
        progress.run_started(make_config(), run_dir, total_steps=4)
        progress.evaluation_done(0, "greedy", {**figures, "seconds": 9.0})
        progress.step_done(1, STEP)
        progress.run_finished(RunReport(Path("runs/x"), 1, "completed", summarize(metrics)))
    shown = text_of(screen)
    shown = " ".join(shown.split())
    told = ("第 1/4 步 奖励 0.250 成功率 25.0 %", "1 个失败", "还需 5:00", "留出任务 第 0 步", "(30.0 至 50.0 %)")
    for words in (*told, "1 步", "贪心 40.0 %", "4 组中有 3 组可学"):
        assert words in shown
