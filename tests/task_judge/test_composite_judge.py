from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.judges import TaskJudgeConfig, WeightedJudgeConfig
from astune.errors import JudgeError, PluginError
from astune.task_judge import CompositeJudge, GroupJudge, make_judge
from astune.task_judge.composite_judge import make_composite
from astune.types import Episode, Task, Verdict

MakeEpisode = Callable[..., Episode]


class Says:
    def __init__(self, reward: float, passed: bool | None = None, reason: str = "", **metrics: float) -> None:
        self.verdict = Verdict(reward, passed, reason, metrics, "Says")

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        return self.verdict


class CannotTell:
    async def judge(self, task: Task, episode: Episode) -> Verdict:
        raise JudgeError("no idea")


class Ranks:
    """The longer the answer, the better; says nothing of one that is empty."""

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        return Verdict(0.5)

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        answers = [str(episode.output.answer) if episode.output else "" for episode in episodes]
        if not any(answers):
            raise JudgeError("nothing to rank")
        return [Verdict(float(sorted(answers, key=len).index(a))) if a else JudgeError("empty") for a in answers]


async def test_the_reward_is_the_weighted_sum_and_every_part_shows(make_episode: MakeEpisode) -> None:
    judge = make_composite([("Math", 1.0, Says(1.0, True, "right", answer_found=1.0)), ("my.py:brief", 0.5, Says(0.6))])
    episode = make_episode("72")
    verdict = await judge.judge(episode.task, episode)
    assert verdict == Verdict(
        reward=1.3,
        passed=True,
        reason="Math 1: right; brief 0.6",
        metrics={"Math": 1.0, "brief": 0.6, "Math/answer_found": 1.0},
        judged_by="Says + Says",
    )


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-5, 5)), min_size=1, max_size=6))
async def test_the_sum_holds_for_any_weights(parts: list[tuple[float, float]]) -> None:
    judge = make_composite([("x", weight, Says(reward)) for weight, reward in parts])
    task = Task("t", "q")
    verdict = await judge.judge(task, None)  # type: ignore[arg-type]
    assert verdict.reward == pytest.approx(sum(weight * reward for weight, reward in parts))
    assert len(verdict.metrics) == len(parts), "parts of one name are told apart"


@pytest.mark.parametrize(
    ("passed", "expected"),
    [((True, None), True), ((True, False), False), ((None, None), None), ((False, None), False)],
)
async def test_success_needs_every_part_that_speaks_of_success(
    passed: tuple[bool | None, bool | None], expected: bool | None, make_episode: MakeEpisode
) -> None:
    judge = make_composite([("a", 1.0, Says(1.0, passed[0])), ("b", 1.0, Says(1.0, passed[1]))])
    episode = make_episode("72")
    assert (await judge.judge(episode.task, episode)).passed is expected


async def test_if_one_part_cannot_tell_the_whole_cannot(make_episode: MakeEpisode) -> None:
    judge = make_composite([("Math", 1.0, Says(1.0)), ("Llm", 1.0, CannotTell())])
    episode = make_episode("72")
    with pytest.raises(JudgeError, match="Llm: no idea"):
        await judge.judge(episode.task, episode)


async def test_a_part_that_judges_groups_makes_the_whole_judge_groups(make_episode: MakeEpisode) -> None:
    judge = make_composite([("Ranks", 1.0, Ranks()), ("b", 0.5, Says(1.0))])
    assert isinstance(judge, GroupJudge)
    episodes = [make_episode("long one"), make_episode(""), make_episode("short")]
    first, second, third = await judge.judge_group(episodes[0].task, episodes)
    assert isinstance(first, Verdict) and isinstance(third, Verdict)
    assert (first.reward, third.reward) == (2.5, 1.5)
    assert isinstance(second, JudgeError) and "Ranks: empty" in str(second)
    both = await judge.judge_group(episodes[0].task, [make_episode(""), make_episode("")])
    assert [str(error) for error in both] == ["Ranks: nothing to rank"] * 2


def test_parts_that_judge_alone_make_no_group_judge() -> None:
    assert not isinstance(make_composite([("a", 1.0, Says(1.0))]), GroupJudge)


async def test_a_list_in_the_configuration_is_a_composite(tmp_path: Path, make_episode: MakeEpisode) -> None:
    (tmp_path / "mine.py").write_text("def half(task, episode):\n    return 0.5\n")
    parts = (WeightedJudgeConfig(judge="MathAnswerAsJudge"), WeightedJudgeConfig(judge=f"{tmp_path}/mine.py:half"))
    judge = make_judge(TaskJudgeConfig(judge_protocol=parts))
    assert isinstance(judge, CompositeJudge)
    episode = make_episode("72", "72")
    verdict = await judge.judge(episode.task, episode)
    assert (verdict.reward, verdict.metrics["MathAnswerAsJudge"], verdict.metrics["half"]) == (1.5, 1.0, 0.5)


def test_a_part_that_does_not_load_is_named() -> None:
    with pytest.raises(PluginError, match="Did you mean 'MathAnswerAsJudge'"):
        make_judge(TaskJudgeConfig(judge_protocol=({"judge": "MathAnswerJudge"},)))  # type: ignore[arg-type]


async def test_one_undecided_part_leaves_the_whole_undecided_unless_another_says_failure(
    make_episode: MakeEpisode,
) -> None:
    unsure = Says(0.5)
    unsure.verdict = replace(unsure.verdict, undecided=True)
    episode = make_episode("72")
    for other, expected in ((True, (None, True)), (None, (None, True)), (False, (False, False))):
        judge = make_composite([("a", 1.0, unsure), ("b", 1.0, Says(1.0, other))])
        verdict = await judge.judge(episode.task, episode)
        assert (verdict.passed, verdict.undecided) == expected
