"""RubricsAsJudge: the file is what is judged by."""

from pathlib import Path

import pytest

from astune.config.judges import RubricsJudgeConfig, TaskJudgeConfig
from astune.errors import ConfigError
from astune.task_judge import make_judge
from astune.task_judge.llm.judge import RubricsAsJudge
from astune.task_judge.llm.pointwise import CriteriaReply, check_scores, rubric_reward
from astune.task_judge.llm.rubric import Criterion, Rubric, load_rubric, save_rubric
from astune.testing import ScriptedChatServer
from tests.task_judge.llm.judging import attempts, config, fences, reply, task

RUBRIC = Rubric(
    name="support",
    criteria=(
        Criterion(id="fee", text="Names the\nfee", weight=3),
        Criterion(id="tone", text="Is polite", scale="scaled", min=-2, max=2, anchors={2: "warm", -2: "rude"}),
        Criterion(id="none", text="Does not count", weight=0),
    ),
)


def settings(tmp_path: Path, server, **rubrics) -> TaskJudgeConfig:
    path = tmp_path / "rubric.yaml"
    save_rubric(RUBRIC, path)
    section = RubricsJudgeConfig(file=str(path), **rubrics)
    return config(server, instructions="A bank.").model_copy(
        update={"judge_protocol": "RubricsAsJudge", "rubrics": section}
    )


async def test_the_reward_is_the_weighted_mean_over_the_rubric(tmp_path: Path):
    with ScriptedChatServer(reply) as server:
        judge = make_judge(settings(tmp_path, server, pass_at=0.9))
        assert isinstance(judge, RubricsAsJudge)
        good, fair, bad, none = await judge.judge_group(
            task("5 EUR"), attempts(task("5 EUR"), "quality 2", "quality 1", "quality -2", "")
        )
        prompt = server.requests[0]["messages"]
    assert [verdict.reward for verdict in (good, fair, bad, none)] == pytest.approx([1.0, (3 + 0.75) / 4, 0.0, 0.0])
    assert [verdict.passed for verdict in (good, fair, bad, none)] == [True, True, False, False]
    assert {name: fair.metrics[name] for name in ("fee", "tone", "none")} == {"fee": 1, "tone": 1, "none": 1}
    assert good.judged_by == f"RubricsAsJudge(support@{RUBRIC.digest[:8]}, m0)"
    assert prompt[0]["content"].startswith("Judge by criteria.\n")
    assert prompt[0]["content"].endswith("A bank.")
    shown = dict(fences({"messages": prompt}))
    assert list(shown) == ["task", "reference", "criteria", "answer"]
    assert shown["criteria"] == (
        "fee | 0-1 | Names the fee\ntone | -2 to 2 | Is polite | -2: rude; 2: warm\nnone | 0-1 | Does not count"
    )


def test_a_rubric_file_must_be_named():
    with pytest.raises(ConfigError, match=r"astune\.task_judge\.rubrics\.file is not set: .*astune rubrics"):
        RubricsAsJudge(TaskJudgeConfig())


def test_scores_come_in_the_order_of_the_rubric():
    given = [{"id": name, "reason": "", "score": score} for name, score in (("none", 1), ("tone", -2), ("fee", 1))]
    scores = check_scores(RUBRIC, CriteriaReply.model_validate({"criteria": given}))
    assert list(scores.items()) == [("fee", 1), ("tone", -2), ("none", 1)]
    assert rubric_reward(RUBRIC, scores) == 0.75


def test_a_learned_rubric_says_from_which_reward_an_answer_is_good(tmp_path: Path) -> None:
    learned = Rubric(criteria=(Criterion(id="a", text="It is so."),), provenance={"pass_at": 0.7})
    save_rubric(learned, tmp_path / "r.yaml")
    assert load_rubric(tmp_path / "r.yaml").pass_at == 0.7
    assert Rubric(criteria=learned.criteria).pass_at == 0.5
    models = [{"base_url": "http://h/v1", "model": "m"}]
    for given, expected in ((None, 0.7), (0.2, 0.2)):
        section = {"llm": {"models": models}, "rubrics": {"file": str(tmp_path / "r.yaml"), "pass_at": given}}
        judge = RubricsAsJudge(TaskJudgeConfig.model_validate(section))
        assert [judge.passes(reward, 1) for reward in (expected - 0.01, expected)] == [False, True]
