from __future__ import annotations

from dataclasses import replace

import pytest

from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.rollout.metrics import evaluation_metrics, rollout_metrics
from astune.types import Episode, Group, StopReason, Task, ToolUse, Turn, Verdict

TASK = Task("t", "q")


def episode(reward: float | None, lost: float = 0.0, **of_agent: float) -> Episode:
    turn = Turn("a", (1, 2), (3, 4, 5), (-1.0,) * 3, 0, "stop")
    verdict = None if reward is None else Verdict(reward)
    stop = StopReason.ERROR if reward is None else StopReason.COMPLETED
    metrics = {"lost_calls": lost}
    return Episode("e", TASK, (turn,), (), stop, verdict=verdict, metrics=metrics, agent_rewards=of_agent)


def test_agents_with_rewards_of_their_own_have_means_over_the_judged_episodes_in_which_they_got_them() -> None:
    episodes = episode(1.0, buyer=-3.0, seller=3.0), episode(0.0, buyer=-1.0), episode(None, buyer=9.0)
    found = rollout_metrics([Group(TASK, episodes)])
    assert (found["reward/mean"], found["agent_reward/buyer"], found["agent_reward/seller"]) == (0.5, -2.0, 3.0)


def test_an_agent_called_mean_does_not_hide_the_mean() -> None:
    assert rollout_metrics([Group(TASK, (episode(1.0, mean=-3.0),))])["reward/mean"] == 1.0


def test_calls_without_an_answer_are_counted() -> None:
    assert rollout_metrics([Group(TASK, (episode(1.0, lost=2.0), episode(None, lost=1.0)))])["calls/lost"] == 3.0


def test_answers_with_call_marks_and_no_call_are_counted_and_known_again_when_read_back() -> None:
    one = episode(1.0)
    turns = tuple(replace(one.turns[0], unread=True, finish_reason=reason) for reason in ("stop", "length"))
    one = replace(one, turns=(*turns, *one.turns))
    found = rollout_metrics([Group(TASK, (one, episode(0.0)))])
    assert (found["calls/unread"], found["calls/unread_cut"]) == (2.0, 1.0)
    assert rollout_metrics([Group(TASK, (episode(1.0),))])["calls/unread"] == 0.0
    read = episode_from_row(episode_to_row(EpisodeRecord(1, "train", one))).episode
    assert [turn.unread for turn in read.turns] == [True, True, False]


def test_tokens_turns_and_ends_are_those_of_all_episodes() -> None:
    found = rollout_metrics([Group(TASK, (episode(1.0),)), Group(TASK, (episode(None), episode(0.0)))])
    assert (found["tokens/sampled"], found["tokens/prompt"], found["turns/mean"]) == (9.0, 6.0, 1.0)
    assert (found["episodes/failed"], found["stop/error"], found["stop/completed"]) == (1.0, 1.0, 2.0)
    assert found["reward/std"] == pytest.approx(0.5)


def test_a_step_without_episodes_has_no_means() -> None:
    assert not {name for name in rollout_metrics([]) if name.endswith("/mean")}


def test_what_judging_cost_is_summed_over_episodes_and_parts_of_a_judge() -> None:
    one = {"llm_calls": 2.0, "llm_cached": 1.0, "llm_prompt_tokens": 100.0, "llm_completion_tokens": 10.0}
    part = {f"LlmAsJudge/{name}": value for name, value in {**one, "llm_cost": 0.5}.items()}
    verdicts = [Verdict(1.0, metrics={**one, "llm_cost": 0.25}), Verdict(0.0), Verdict(0.0, metrics=part)]
    group = Group(TASK, tuple(replace(episode(0.0), verdict=verdict) for verdict in verdicts))
    metrics = rollout_metrics([group])
    found = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("judging/")}
    assert found == {"calls": 4.0, "cached": 2.0, "tokens": 220.0, "cost": 0.75}
    assert evaluation_metrics([group], 1.0)["judging_cost"] == 0.75
    unknown = Group(TASK, (*group.episodes, replace(episode(0.0), verdict=Verdict(0.0, metrics=one))))
    assert "judging/cost" not in rollout_metrics([unknown]) and rollout_metrics([unknown])["judging/calls"] == 6.0
    nobody = rollout_metrics([Group(TASK, (episode(0.0),))])
    assert not any(name.startswith("judging") for name in nobody)


def test_calls_and_errors_of_tools_are_summed_and_known_again_when_read_back() -> None:
    uses = {"search": ToolUse(3, 3, "no network"), "add": ToolUse(1)}
    one = replace(episode(1.0), tools=uses)
    found = rollout_metrics([Group(TASK, (one, replace(episode(0.0), tools={"search": ToolUse(2, 1, "x")})))])
    assert {name: value for name, value in found.items() if name.startswith("tools/")} == {
        "tools/calls/add": 1.0,
        "tools/calls/search": 5.0,
        "tools/errors/add": 0.0,
        "tools/errors/search": 4.0,
    }
    assert episode_from_row(episode_to_row(EpisodeRecord(1, "train", one))).episode.tools == uses
    assert not any(name.startswith("tools/") for name in rollout_metrics([Group(TASK, (episode(1.0),))]))
