"""Real AgentScope agents: what is recorded of them, which timelines it makes, and which tokens are trained.

Golden files are written anew by `REGENERATE=1 python -m pytest tests/agents` (see `conftest.py`).
"""

import os

from astune.algorithm import check_episode
from astune.context_tracker.forks import (
    BRANCH,
    COMPACTED,
    HISTORY_EDITED,
    NEW_CONVERSATION,
    REASONING_STRIPPED,
    TOOLS_CHANGED,
)
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.messages import meaning
from astune.types import StopReason
from tests.agents.answers import BOTH
from tests.agents.golden import FOLDER, from_golden, golden_path, golden_text, to_golden
from tests.rows import each_row

TEAM = {"chief": [None], "clerk": [None], "scout": [None]}
FORKS = {
    "tools": {"guide": [None, REASONING_STRIPPED]},
    "tools_reasoning_kept": {"guide": [None, REASONING_STRIPPED]},
    "debate": {"optimist": [None], "sceptic": [None]},
    "debate_history": {"optimist": [None, NEW_CONVERSATION], "sceptic": [None, NEW_CONVERSATION]},
    "structured_reply": {1: {"guide": [None, HISTORY_EDITED]}, 2: {"guide": [None]}},
    "structured_reply_forced": {"guide": [None, TOOLS_CHANGED]},
    "structured_model": {"guide": [None]},
    "structured_model_second_try": {"guide": [None, TOOLS_CHANGED]},
    "out_of_rounds": {1: {"guide": [None, TOOLS_CHANGED]}, 2: {"guide": [None]}},
    "compressed": {"guide": [None, TOOLS_CHANGED, COMPACTED]},
    "compressed_whole": {"guide": [None, TOOLS_CHANGED, NEW_CONVERSATION]},
    "plan": {"guide": [None, HISTORY_EDITED, HISTORY_EDITED]},
    "team": TEAM,
    "team_pipeline": TEAM,
    "two_attempts": {"scout": [None, BRANCH]},
    "mcp": {"guide": [None]},
}
"""Why each timeline of each agent begins; by AgentScope's line where the two ask differently."""

REWRITTEN = {"tools": {0, 1}, "tools_reasoning_kept": {0, 1}}
"""Answers that later prompts hold without their tokens: the template drops their reasoning."""

OTHER_WORDS = {
    "tools": "how a failed tool is told",
    "tools_reasoning_kept": "how a failed tool is told",
    "debate": "1.x shows what another agent said as an assistant's message",
    "out_of_rounds": "how the agent is told to sum up",
}
"""Where the two lines write other messages. The system message differs everywhere that tools are offered: 1.x gives the
keys of a tool's schema in another order."""

OTHER_TOOLS = {"out_of_rounds": "1.x offers none when it sums up, 2.x says that none is to be called"}
"""Where the two lines offer other tools, so that one of them forks."""

GOLDEN_FILES = sorted(FOLDER.glob("*/*.json"))


def test_an_episode_is_as_it_was_recorded(recorded, play, line):
    path = golden_path(line, recorded)
    text = golden_text(to_golden(play(recorded)[0]))
    if os.environ.get("REGENERATE"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_an_agent_gets_the_timelines_that_its_habits_make(workflow, play, line):
    episode, _ = play(workflow)
    assert (episode.stop_reason, episode.error) == (StopReason.COMPLETED, None)
    forks: dict[str, list[str | None]] = {}
    for timeline in episode.timelines:
        forks.setdefault(timeline.agent, []).append(timeline.fork)
    assert forks == FORKS[workflow].get(line, FORKS[workflow])


def test_every_sampled_token_is_trained_once_and_of_frozen_agents_none(workflow, play):
    episode, calls = play(workflow)
    check_episode(episode)
    assert [tuple(turn.prompt_ids) for turn in episode.turns] == [prompt_ids for prompt_ids, _ in calls]
    for agent in {turn.agent for turn in episode.turns}:
        sampled = sum(len(turn.output_ids) for turn in episode.turns if turn.agent == agent)
        trained = sum(timeline.trained_tokens for timeline in episode.timelines if timeline.agent == agent)
        assert trained == (0 if agent == "sceptic" else sampled)


def test_answers_keep_their_tokens_in_the_prompts_that_hold_them(workflow, play):
    episode, _ = play(workflow)
    held = rewritten = 0
    for later, turn in enumerate(episode.turns):
        said = [meaning([message], 0) for message in turn.messages]
        for number, former in enumerate(episode.turns[:later]):
            if former.agent == turn.agent and meaning([former.response], 0) in said:
                held += 1
                kept = former.output_ids.pack() in turn.prompt_ids.pack()
                rewritten += not kept
                assert kept or number in REWRITTEN.get(workflow, ()), (number, later)
    assert held or "model" in workflow or workflow == "debate_history"
    assert bool(rewritten) == (workflow in REWRITTEN)


def test_each_agent_has_the_reward_that_the_workflow_gave_it(play):
    episode, _ = play("debate")
    assert [episode.reward_of(agent) for agent in ("optimist", "sceptic", "host")] == [0.25, -0.25, 0.0]


def test_reasoning_that_a_formatter_drops_is_the_models_all_the_same(play):
    kept, dropped = (play(workflow)[0].timelines for workflow in ("tools_reasoning_kept", "tools"))
    assert kept == dropped


def test_there_is_a_recorded_episode_of_every_cause_of_a_timeline():
    causes = {
        fork for each in FORKS.values() for line in (1, 2) for forks in each.get(line, each).values() for fork in forks
    }
    recorded = {timeline.fork for path in GOLDEN_FILES for timeline in from_golden(path).timelines}
    assert recorded == causes


@each_row("path", GOLDEN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_episode_reads_back_and_its_turns_merge_into_its_timelines(path):
    episode = from_golden(path)
    check_episode(episode)
    assert TurnForest(episode.turns).timelines() == episode.timelines


@each_row("name", [name for name in BOTH if golden_path(1, name).exists()])
def test_both_lines_of_agentscope_give_the_same_timelines(name, chat_format):
    one, two = (from_golden(golden_path(line, name)) for line in (1, 2))
    assert [turn.output_ids for turn in one.turns] == [turn.output_ids for turn in two.turns]
    if name not in OTHER_TOOLS:
        assert sampled_in(one) == sampled_in(two)
    if name not in OTHER_WORDS:
        end_of_system = chat_format.stop_token_ids[0]
        assert ids_after(end_of_system, one) == ids_after(end_of_system, two)


def sampled_in(episode):
    """Agent, cause and sampled tokens of every timeline."""
    return [
        (line.agent, line.fork, [(span.turn, tuple(line.token_ids[span.start : span.stop])) for span in line.spans])
        for line in episode.timelines
    ]


def ids_after(token, episode):
    """The ids of every timeline after the first `token`."""
    timelines = [tuple(line.token_ids) for line in episode.timelines]
    return [ids[ids.index(token) :] for ids in timelines]
