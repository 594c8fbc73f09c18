from dataclasses import replace

import pytest

from astune.errors import ConfigError
from astune.monitor.episode_filter import parse_filter
from astune.monitor.episodes import EpisodeRecord
from astune.types import Episode, EpisodeError, StopReason, Task, Turn, Verdict
from tests.rows import each_row

TURNS = tuple(Turn(agent, [1], [2, 3], [0.0, 0.0], 0, "stop") for agent in ("solver", "critic"))
GOOD = Episode("a", Task("t 1, and 2", "?"), TURNS, (), StopReason.COMPLETED, verdict=Verdict(1.0, passed=True))
BAD = replace(GOOD, task=Task("t2", "?"), stop_reason=StopReason.MAX_TURNS, verdict=Verdict(0.25, passed=False))
FAILED = replace(
    GOOD, turns=(), task=Task("t3", "?"), stop_reason=StopReason.ERROR, verdict=None,
    error=EpisodeError("judge", "JudgeError", "?"),
)  # fmt: skip
ONLY_REWARD = replace(GOOD, task=Task("t4", "?"), verdict=Verdict(0.5))
EPISODES = {
    "good": EpisodeRecord(1, "train", GOOD),
    "bad": EpisodeRecord(2, "train", BAD),
    "failed": EpisodeRecord(3, "eval/greedy", FAILED),
    "reward": EpisodeRecord(4, "train", ONLY_REWARD),
}


@each_row(
    ("text", "expected"),
    [
        ("reward<0.5", "bad"),
        ("reward<=0.5", "bad reward"),
        ("reward==1", "good"),
        ("reward=1", "good"),
        ("reward!=1", "bad reward"),
        ("reward>=-1", "good bad reward"),
        ("passed", "good"),
        ("not passed", "bad"),
        ("error", "failed"),
        ("not error", "good bad reward"),
        ("error=judge", "failed"),
        ("error = JudgeError", "failed"),
        ("error!=judge", "good bad reward"),
        ("unjudged", "failed"),
        ("not unjudged", "good bad reward"),
        ("stop=max_turns", "bad"),
        ("task=t2", "bad"),
        ("task='t 1, and 2'", "good"),
        ('task="t 1, and 2" and passed', "good"),
        ("not task=t2", "good failed reward"),
        ("agent=critic", "good bad reward"),
        ("agent!=critic", "failed"),
        ("turns>1", "good bad reward"),
        ("turns < 1", "failed"),
        ("tokens>=4", "good bad reward"),
        ("step>=3", "failed reward"),
        ("phase=train", "good bad reward"),
        ("phase=eval/greedy", "failed"),
        ("reward<1 and step>2", "reward"),
        ("reward<1, step>2", "reward"),
        ("reward<1,phase=train  and not passed", "bad"),
        ("not reward<1", "good failed"),
    ],
)
def test_conditions_choose(text, expected):
    keep = parse_filter(text)
    assert [name for name, record in EPISODES.items() if keep(record)] == expected.split()


@each_row(
    ("text", "said"),
    [
        ("rewrd<1", r"'rewrd<1': there is no 'rewrd'. Did you mean 'reward'\? There are: reward, turns, tokens"),
        ("passed and rewrd<1", "'rewrd<1': there is no 'rewrd'"),
        ("reward", "'reward': reward needs a value, as 'reward<1'"),
        ("task", "'task': task needs a value"),
        ("reward<high", "reward is compared with a number, got 'high'"),
        ("passed=true", "passed is true or not and takes no value"),
        ("stop=max_turn", "no episode stops so. Did you mean 'max_turns'"),
        ("agent<3", "agent is a name: compare it with = or !="),
        ("reward<", "'reward<' is no condition"),
        ("a b", "'a b' is no condition; expected as 'reward<0.5'"),
        ("", "a condition is missing"),
        ("passed,,error", "a condition is missing"),
        ("passed or error", "'passed or error' is no condition"),
    ],
)
def test_what_is_wrong_is_named_with_what_there_is(text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        parse_filter(text)
    assert f"filter {text!r}" in str(caught.value)
