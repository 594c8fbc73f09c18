import json
from dataclasses import replace

import pytest

from astune.cli import main
from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.task_judge import make_judge


@pytest.fixture
def env_judge():
    return make_judge(TaskJudgeConfig(judge_protocol="EnvServiceJudge"))


@pytest.mark.parametrize(("score", "passed"), [(-1.0, False), (0.0, False), (0.99, False), (1.0, True), (7.5, True)])
async def test_the_reward_is_the_score_as_it_is(env_judge, make_episode, score, passed):
    episode = replace(make_episode("whatever"), env_score=score)
    verdict = await env_judge.judge(episode.task, episode)
    assert (verdict.reward, verdict.passed) == (score, passed)


async def test_without_a_score_there_is_no_verdict_but_a_reason(env_judge, make_episode):
    episode = make_episode("done")
    with pytest.raises(JudgeError, match=r"'task-1'.*tuner\.use_environment"):
        await env_judge.judge(episode.task, episode)
    with pytest.raises(JudgeError, match="the service is on fire"):
        await env_judge.judge(episode.task, replace(episode, env_error="the service is on fire"))


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
async def test_a_score_that_is_no_finite_number_is_no_reward(env_judge, make_episode, score):
    with pytest.raises(JudgeError, match="finite"):
        episode = replace(make_episode("done"), env_score=score)
        await env_judge.judge(episode.task, episode)


def test_recorded_episodes_can_be_judged_by_their_environment(tmp_path, make_episode, capsys):
    episode = replace(make_episode("done"), env_score=0.5)
    recorded, conf = tmp_path / "train.jsonl", tmp_path / "x.yaml"
    recorded.write_text(json.dumps(episode_to_row(EpisodeRecord(1, "train", episode))) + "\n")
    conf.write_text(
        "astune: {rollout: {agentscope_learn_protocol: 'agent.py:agent'}, "
        "task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}}\n"
    )
    assert main(["rescore", str(recorded), "--judge", "EnvServiceJudge", "--conf", str(conf)]) == 0
    assert "none -> 0.5 failed  the environment gave 0.5" in capsys.readouterr().out
