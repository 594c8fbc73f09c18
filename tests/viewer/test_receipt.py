"""What a run trained, forked and left out, as the page tells it."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

from astune.algorithm.batch_rules import BALANCED, NOT_REPLAYED
from astune.algorithm.receipt import LATE, NO_SIGNAL, NO_TEACHER, NOT_ITS_TURN, SKIPPED_UPDATE, UNJUDGED
from astune.algorithm.samples import to_samples
from astune.context_tracker import forks
from astune.context_tracker.merge import TurnForest
from astune.methods.rft import REPEATED, SURPLUS, WRONG
from astune.monitor.words import FORKS, LEFT_OUT
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict
from astune.viewer.episode_data import conversation, receipt_line
from astune.viewer.step_credit import Estimator, credit_step
from astune.viewer.story import receipt_view

TASK = Task("t", "q")


def turn(agent: str, prompt: tuple[int, ...], output: tuple[int, ...], **values: object) -> Turn:
    return Turn(agent, prompt, output, (-1.0,) * len(output), 0, "stop", **values)


def branching_episode(name: str, reward: float | None, bonus: float) -> Episode:
    """Turn 1 goes on twice; a frozen user speaks between; one answer is inexact and left out."""
    turns = (
        turn("solver", (1,), (2, 3)),
        turn("user", (7,), (8, 8, 8), excluded="frozen"),
        turn("solver", (1, 2, 3, 4), (5,)),
        turn("solver", (1, 2, 3, 6), (7, 7), fork="best_of_n"),
        turn("solver", (9,), (9,), excluded="inexact", exact=False, fork="new_conversation"),
    )
    return Episode(
        name,
        TASK,
        turns,
        TurnForest(turns).timelines(),
        StopReason.COMPLETED,
        verdict=None if reward is None else Verdict(reward),
        agent_rewards={"solver": 0.5 * (reward or 0.0)},
        turn_rewards={2: bonus},
        unique_tokens=13,
    )


def test_every_cause_of_a_fork_has_a_sentence():
    causes = {value for name, value in inspect.getmembers(forks) if name.isupper() and isinstance(value, str)}
    assert set(FORKS) == causes


def test_every_reason_to_leave_tokens_out_has_a_sentence():
    noted = set(re.findall(r'"(\w+)"', inspect.getdoc(Turn).partition("carry no loss (")[2].partition(")")[0]))
    of_episodes = {UNJUDGED, LATE, NO_SIGNAL, NOT_ITS_TURN, NOT_REPLAYED, BALANCED, WRONG, REPEATED, SURPLUS}
    assert set(LEFT_OUT) == noted | of_episodes | {SKIPPED_UPDATE, NO_TEACHER}
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text("utf-8")
    table = page.partition("| reason |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(LEFT_OUT)


def test_a_turn_with_call_marks_and_no_call_says_so():
    episode = branching_episode("e", 1.0, -0.25)
    unread = replace(episode, turns=(replace(episode.turns[0], unread=True), *episode.turns[1:]))
    bubble = next(one for one in conversation(unread) if one.role == "assistant")
    assert [mark.text for mark in bubble.marks] == ["call marks and no call"] and "docs" in bubble.marks[0].meaning


def test_marks_tell_of_each_turn_what_became_of_it():
    episode = branching_episode("e", 1.0, -0.25)
    bubbles = conversation(episode)
    marks = [[mark.text for mark in bubble.marks] for bubble in bubbles if bubble.role == "assistant"]
    assert marks == [
        [],
        ["not trained: frozen"],
        ["turn reward -0.25"],
        ["new row: best of n"],
        ["new row: new conversation", "not trained: inexact"],
    ]
    assert all(mark.meaning for bubble in bubbles for mark in bubble.marks)
    assert receipt_line(episode) == (
        "9 tokens sampled · 5 trainable · 3 frozen · 1 inexact · 4 training rows of 17 tokens (13 distinct)"
    )


def test_a_history_that_lost_messages_says_why():
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    turns = (
        turn("solver", (1,), (2,), messages=tuple(messages), response={"content": "x"}),
        turn("solver", (9,), (2,), messages=tuple(messages[1:]), response={"content": "y"}, fork="truncated"),
    )
    episode = Episode("e", TASK, turns, TurnForest(turns).timelines(), StopReason.COMPLETED)
    notes = [bubble.text for bubble in conversation(episode) if bubble.role == "note"]
    assert notes == ["The oldest messages were dropped and the rest went on. 3 of 3 earlier messages are not in it."]


def test_tokens_are_coloured_by_the_advantage_of_their_agent_and_turn():
    group = [branching_episode("good", 1.0, 0.8), branching_episode("bad", 0.0, 0.0)]
    found = credit_step(group, Estimator.of({"astune.algorithm.advantage": "dr_grpo"}))[0].advantages
    own, bonus, none = 0.25, 0.8 - 0.1, -0.1  # eight turns of the solver, one of them with a bonus
    expected = [[own + bonus + none, own + bonus], [0.5], [own + 2 * none, own + none], [own + none]]
    assert [[round(value, 9) for value in line] for line in found] == [
        [round(value, 9) for value in line] for line in expected
    ]


def group_that_differs() -> list[Episode]:
    return [branching_episode("good", 1.0, 0.0), branching_episode("bad", 0.0, 0.0)]


def test_the_receipt_of_a_run_accounts_for_every_token():
    groups = [Group(TASK, tuple(group_that_differs())), Group(TASK, (branching_episode("alone", None, 0.0),))]
    _, receipt = to_samples(groups, lambda rewards: [reward - 0.5 for reward in rewards])
    view = receipt_view([{"step": 1, "tokens/sampled": receipt.sampled, **receipt.metrics(0)}])
    assert view is not None
    assert [(row.name, row.count) for row in view.tokens] == [
        ("trained", 10),
        ("unjudged", 9),
        ("frozen", 6),
        ("inexact", 2),
    ]
    assert round(sum(row.percent for row in view.tokens), 9) == 100
    assert [(row.name, row.count) for row in view.forks] == [("best_of_n", 3), ("new_conversation", 3)]
    assert receipt_view([]) is None


def test_the_page_has_the_receipt(make_run):
    from astune.viewer import write_report

    text = write_report(make_run(steps=2, held_out=2).path).read_text("utf-8")
    assert "What was trained" in text and LEFT_OUT["no_signal"] in text
    assert "sum to 1 in each of the" in text
