"""What one update does, on the screen."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from astune.support.terminal import Console

pytest.importorskip("torch")
pytest.importorskip("transformers")

from astune.backbone.debug.views.update import _describe_ratio, show_update
from astune.backbone.local.inspect import SpanUpdate, UpdateInspection
from astune.types import Episode, Group, Sample, Span, StopReason, Task, Timeline, Turn, Verdict
from tests.rows import each_row

WORDS = {10: "Hello", 11: " [red]you", 12: "\n", 13: "\x1b[2J", 14: "!"}
METRICS = {"loss": -0.25, "grad_norm": 3.5, "learning_rate": 1e-4}


def pieces(ids: Sequence[int]) -> list[str]:
    return [WORDS[number] for number in ids]


def span(turn: int, start: int, stop: int, shared: bool = False, trainable: bool = True) -> Span:
    return Span(turn, start, stop, 0, 1.0, trainable, (-1.0,) * (stop - start), shared)


def update(changes: Sequence[float], loss: float) -> SpanUpdate:
    before = (-1.0,) * len(changes)
    return SpanUpdate(before, before, tuple(old + change for old, change in zip(before, changes, strict=True)), loss)


def attempt(number: int, reward: float | None, excluded: str | None = None) -> Episode:
    verdict = None if reward is None else Verdict(reward)
    turns = (Turn("solver", (1,), (10,), (-1.0,), 0, "stop", excluded=excluded),)
    return Episode(f"e{number}", Task("t", "q"), turns, (), StopReason.COMPLETED, verdict=verdict)


def group(*rewards: float | None, excluded: str | None = None) -> Group:
    attempts = tuple(attempt(number, reward, excluded) for number, reward in enumerate(rewards))
    return Group(Task("t", "q"), attempts)


def shown(inspection: UpdateInspection, samples: Sequence[Sample], attempts: Group, **console: Any) -> str:
    screen = io.StringIO()
    show_update(Console(file=screen, width=110, **console), inspection, samples, attempts, pieces)
    return "\n".join(line.rstrip() for line in screen.getvalue().splitlines()).strip("\n") + "\n"


def two_attempts() -> tuple[UpdateInspection, list[Sample]]:
    """Of three: one lost in a turn, one won in two (one of them by another agent), one was not judged."""
    lost = Timeline("[b]solver[/b]", (1, 10, 11), (span(0, 1, 3),))
    won = Timeline("[b]solver[/b]", (1, 10, 12, 13), (span(0, 1, 2), span(2, 2, 4)))
    checked = Timeline("checker", (1, 14), (span(1, 1, 2),))
    samples = [
        Sample(lost, (-1.0,), (0.25,), "t", "e0"),
        Sample(won, (1.0, 1.0), (0.0, 1 / 6), "t", "e1"),
        Sample(checked, (1.0,), (1 / 6,), "t", "e1"),
    ]
    rows = ((update((-0.5, -0.01), 0.5),), (None, update((0.25, 0.0), -0.5)), (update((0.002,), -0.25),))
    return UpdateInspection(METRICS, rows, learning_rate=1e-3, max_grad_norm=1.0), samples


def test_the_whole_screen() -> None:
    inspection, samples = two_attempts()
    assert (
        shown(inspection, samples, group(0.0, 1.0, None))
        == r"""update  one training step of these attempts alone
  attempt  turn  agent          tokens  advantage  weight     loss  logprob   change    prob   change
        0     1  [b]solver[/b]       2     -1.000    0.25  +0.5000  -1.0000  -0.2550  0.3679  -0.0742
        1     2  checker             1     +1.000   0.167  -0.2500  -1.0000  +0.0020  0.3679  +0.0007
        1     3  [b]solver[/b]       2     +1.000   0.167  -0.5000  -1.0000  +0.1250  0.3679  +0.0522

  loss -0.250000 · gradient norm 3.5, clipped to 1 (astune.trainer.max_grad_norm) · learning rate 0.0001 (on
  its way to 0.001) · KL 0.0323 per token
  attempt 1 (reward 1) became 1.3 times as likely, attempt 0 (reward 0) became 0.6 times as likely, attempt 2
  was not judged and is left out

  the tokens whose logprobs change most
  attempt  turn  token                   logprob   change
        0     1  'Hello'      -1.0000 -> -1.5000  -0.5000
        0     1  ' [red]you'  -1.0000 -> -1.0100  -0.0100
        1     3  '\n'         -1.0000 -> -0.7500  +0.2500
        1     2  '!'          -1.0000 -> -0.9980  +0.0020
        1     3  '\u001b[2J'  -1.0000 -> -1.0000  +0.0000
"""
    )


def test_a_terminal_shows_the_trained_text_in_colours() -> None:
    inspection, samples = two_attempts()
    text = shown(inspection, samples, group(0.0, 1.0, None), force_terminal=True, color_system="standard")
    _, tokens = text.split("trained tokens after the update: ")
    for piece, style in (("Hello", "1;31"), (" [red]you", "2"), ("!", "2"), (r"\u001b[2J", "2")):
        assert f"\x1b[{style}m{piece}\x1b[0m" in tokens
    assert "\x1b[2J" not in text
    assert "the tokens whose logprobs change most" not in text
    assert re.sub(r"\x1b\[[\d;]*m", "", tokens).split("\n")[1:3] == [
        "  attempt 0, turn 1, [b]solver[/b]",
        "    Hello [red]you",
    ]


def test_a_rise_is_green_and_the_largest_changes_are_bold() -> None:
    line = Timeline("solver", (1, 10, 14, 11), (span(0, 1, 4),))
    sample = Sample(line, (1.0,), (1 / 3,), "t", "e0")
    inspection = UpdateInspection(METRICS, ((update((1.0, 0.4, -0.4), -1.0),),), 1e-3, 1.0)
    text = shown(inspection, [sample], group(1.0, 0.0), force_terminal=True, color_system="standard")
    assert "\x1b[1;32mHello\x1b[0m\x1b[32m!\x1b[0m\x1b[31m [red]you\x1b[0m" in text
    assert "attempt 1 has no token in the loss" in text


def test_a_turn_on_several_training_rows_is_one_line() -> None:
    first = Timeline("solver", (1, 10, 11), (span(0, 1, 2), span(1, 2, 3)))
    second = Timeline("solver", (1, 10, 14), (span(0, 1, 2, shared=True), span(2, 2, 3)))
    samples = [
        Sample(first, (1.0, 1.0), (0.25, 0.25), "t", "e0"),
        Sample(second, (-1.0, -1.0), (0.25, 0.25), "t", "e0"),
    ]
    rows = ((update((0.1,), -0.25), update((0.5,), -0.25)), (update((0.1,), 0.25), update((-0.5,), 0.25)))
    text = shown(UpdateInspection(METRICS, rows, 1e-4, 5.0), samples, group(1.0, 0.0))
    assert "attempt  turn  rows  agent   tokens       advantage  weight     loss" in text
    assert "0     1     2  solver       1  -1.00 to +1.00     0.5  +0.0000  -1.0000  +0.1000" in text
    assert "attempt 0 (reward 1) became 1.1 times as likely" in text  # the shared token counts once
    assert "gradient norm 3.5, not clipped" in text and "learning rate 0.0001 ·" in text


def test_an_update_that_is_thrown_away_says_so() -> None:
    inspection, samples = two_attempts()
    broken = METRICS | {"loss": math.nan, "grad_norm": math.nan}
    text = shown(replace(inspection, metrics=broken, skipped=True), samples, group(0.0, 1.0))
    assert "loss nan · gradient norm nan" in text
    assert text.endswith("the gradient is not finite: training would throw this update away, no weight changes\n")


@each_row(
    ("attempts", "reason"),
    [
        (group(None), "no reward to learn from, as the one attempt was not judged"),
        (group(None, None), "no reward to learn from, as none of the 2 attempts was judged"),
        (group(0.5, None, 0.5), "all 2 judged attempts have reward 0.5, so none is better than another"),
        (group(1.0), "an advantage compares attempts at the same task, and one was judged\n  (--repeat 4"),
        (group(1.0, 0.0, excluded="greedy"), "no token that was sampled carries loss (greedy)"),
        (group(1.0, 0.0), "the advantages of all turns that carry loss are 0"),
    ],
)
def test_a_group_that_training_would_skip_says_why(attempts: Group, reason: str) -> None:
    text = shown(UpdateInspection({}, (), 1e-3, 1.0), [], attempts)
    assert f"training would skip this group: {reason}" in text


@each_row(
    ("log_ratio", "words"),
    [
        (0.6, "1.8 times"),
        (-0.5, "0.61 times"),
        (0.0003, "1.0003 times"),
        (-0.02, "0.98 times"),
        (5.0, "148 times"),
        (-5.0, "0.0067 times"),
        (-30.0, "10^-13 times"),
        (2000.0, "10^869 times"),
        (0.0, "just"),
    ],
)
def test_a_ratio_in_words(log_ratio: float, words: str) -> None:
    assert _describe_ratio(log_ratio) == words
