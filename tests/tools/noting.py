"""The agent of the demo, which notes its task at a server of tools first: on every backbone its episodes are the demo's
own, and those that a server was not reset for, or that had none, fail. Those that go on for long are cut."""

import sys
from pathlib import Path

from astune.support.resources import tutorial_dir

sys.path.insert(0, str(tutorial_dir() / "math_agent"))
from workflow import MathAgent

SERVER = Path(__file__).with_name("notes_server.py")
OWN = f"command: [python, {SERVER}], isolation: episode, reset: reset, most: 2, warm: 1"
SERVERS = f"astune.tools.servers={{notes: {{{OWN}}}}}"
CUTS = "astune.rollout.context={strategy: summarise, at: 120, prompt: Sum up.}"
SETTINGS = (SERVERS, CUTS, f"astune.rollout.agentscope_learn_protocol={__file__}:Noting")


class Noting(MathAgent):
    async def execute(self, task, tuner):
        said = [await tuner.tools.call("show"), await tuner.tools.call("add", {"note": task.task_id})]
        assert said == ["none", "1 notes"], said
        return await super().execute(task, tuner)


def check(episodes):
    """Every episode has had a server of its own."""
    assert episodes
    for episode in episodes:
        # Who draws its answers may draw calls for ever.
        assert episode.error is None or "astune.rollout.max_turns" in episode.error.message, episode.error
        assert (episode.tools["show"].calls, episode.tools["add"].calls) == (1, 1)
        assert not episode.tools["show"].causes and not episode.tools["add"].causes


def check_cuts(episodes):
    """A second call of the calculator makes a conversation too long: its first is summed up, and the agent goes on."""
    long = [episode for episode in episodes if any(turn.cut is not None for turn in episode.turns)]
    assert 0 < len(long) < len(episodes)
    for episode in long:
        cut = next(turn for turn in episode.turns if turn.cut is not None)
        asked = episode.turns[cut.cut.summary]
        assert (cut.fork, cut.cut.strategy, cut.cut.messages) == ("context_cut", "summarise", 2)
        assert asked.messages[-1]["content"] == "Sum up." and asked.response["content"] in cut.messages[1]["content"]
        sampled = sum(len(turn.output_ids) for turn in episode.turns)
        assert sum(line.trained_tokens for line in episode.timelines) == sampled
