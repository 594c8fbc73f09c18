"""Two evaluations on the same tasks: is the second better than the first, or lucky, and how often does it win?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from astune.config.evaluation import is_share
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.monitor.episodes import episodes_path, read_episodes
from astune.monitor.run_dir import RunDir
from astune.rollout.metrics import values_by_task
from astune.rollout.verdict import ask_group, strip_verdict
from astune.support.concurrency import all_or_none
from astune.support.statistics import MeanOverTasks, PairedTest, estimate, permutation_test
from astune.task_judge import GroupJudge, TaskJudges, make_judge
from astune.task_judge.judge_base import AT_ONCE
from astune.task_judge.registry import import_registered
from astune.training.standalone import Played
from astune.types import Episode, Task

Pair: TypeAlias = tuple[Episode, Episode]


class Compared(NamedTuple):
    """One figure of an evaluation in both, over the tasks that have it in both: their means, the mean of the
    differences (second less first) with its interval, and the test that it is 0. `left_out` are tasks that have the
    figure in one only."""

    evaluation: str
    figure: str
    first: MeanOverTasks
    second: MeanOverTasks
    difference: MeanOverTasks
    test: PairedTest
    left_out: int


class Tested(Protocol):
    """A row of a table, as `Compared`."""

    @property
    def test(self) -> PairedTest: ...

    def _asdict(self) -> dict[str, Any]: ...


def row_to_json(row: Tested) -> dict[str, Any]:
    """The fields of a row, and of its test `p`, `exact` and `tasks`."""
    cells = row._asdict()
    cells.pop("test")
    values = {name: cell._asdict() if isinstance(cell, MeanOverTasks) else cell for name, cell in cells.items()}
    return {**values, "p": row.test.p, "exact": row.test.exact, "tasks": row.test.n}


def compare(first: Played, second: Played) -> list[Compared]:
    """Every figure that both have for a task in common."""
    found = []
    for evaluation in _in_both(first.groups, second.groups):
        one, other = (values_by_task(played.groups[evaluation]) for played in (first, second))
        for figure in _in_both(one, other):
            a, b = one[figure], other[figure]
            if tasks := _in_both(a, b):
                pairs = [(a[task], b[task]) for task in tasks]
                differences = [after - before for before, after in pairs]
                before, after = (estimate(list(each), share=is_share(figure)) for each in zip(*pairs, strict=True))
                test = permutation_test(differences)
                left_out = len(a.keys() ^ b.keys())
                found.append(Compared(evaluation, figure, before, after, estimate(differences), test, left_out))
    return found


class Wins(NamedTuple):
    """Shares of pairs that the second won, tied and lost, means over tasks, and the test that it wins as often as it
    loses. A pair is two attempts of the same name. `by` is what compared them: "reward", or "judge". `left_out` are
    pairs that nothing compares: one of the two failed, or the judge could not tell."""

    evaluation: str
    by: str
    won: MeanOverTasks
    tied: MeanOverTasks
    lost: MeanOverTasks
    test: PairedTest
    left_out: int


def wins_by_reward(first: Played, second: Played) -> list[Wins]:
    """Compare the rewards that the two attempts of each pair have."""
    found = []
    for evaluation in _in_both(first.groups, second.groups):
        one, other = (
            [episode for group in played.groups[evaluation] for episode in group.episodes] for played in (first, second)
        )
        pairs = _pairs(one, other)
        signs = [None if a.reward is None or b.reward is None else _sign(a.reward, b.reward) for a, b in pairs]
        found += _count_wins(evaluation, "reward", pairs, signs)
    return found


async def wins_by_judge(first: Played, second: Played, config: AstuneConfig) -> list[Wins]:
    """Show the judge of `config` both attempts of each pair at once, as it is shown the attempts of a group. Raises
    ConfigError where that judge does not compare attempts."""
    judge_of = comparing_judges(config)
    limit, seconds = asyncio.Semaphore(AT_ONCE), config.task_judge.seconds

    async def compare_pair(pair: Pair) -> int | None:
        shown = [episode for episode in map(strip_verdict, pair) if episode is not None]
        judge = judge_of(pair[0].task)
        if len(shown) < 2:
            return None
        async with limit:
            before, after = await ask_group(judge, shown, seconds)
        if isinstance(before, Exception) or isinstance(after, Exception):
            return None
        return _sign(before.reward, after.reward)

    found = []
    for evaluation in _in_both(first.groups, second.groups):
        pairs = _pairs(*(_with_turns(played, evaluation) for played in (first, second)))
        found += _count_wins(evaluation, "judge", pairs, await all_or_none([compare_pair(pair) for pair in pairs]))
    return found


def comparing_judges(config: AstuneConfig) -> Callable[[Task], GroupJudge]:
    """The judge of each task, which raises ConfigError for one that does not compare attempts."""
    import_registered([named.judge for named in config.task_judge.judges], config.rollout.agentscope_learn_protocol)
    common, own = make_judge(config.task_judge), TaskJudges(config.task_judge)

    def judge_of(task: Task) -> GroupJudge:
        judge = own.of(task) or common
        if not isinstance(judge, GroupJudge):
            raise ConfigError(
                f"--judge-pairs: the judge of task {task.task_id!r} judges each attempt by itself, and its rewards are "
                "compared anyway; take that out, or name one that compares, as LlmAsJudge with "
                "astune.task_judge.llm.mode=pairwise"
            )
        return judge

    return judge_of


def _in_both(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return [name for name in one if name in other]


def _pairs(first: Sequence[Episode], second: Sequence[Episode]) -> list[Pair]:
    by_name = {episode.episode_id: episode for episode in second}
    return [(episode, by_name[episode.episode_id]) for episode in first if episode.episode_id in by_name]


def _with_turns(played: Played, evaluation: str) -> list[Episode]:
    """The episodes as a judge wants them, without their tokens."""
    path = episodes_path(RunDir(played.folder).episodes_dir, f"eval/{evaluation}")
    return [replace(record.episode, timelines=()) for record in read_episodes(path)]


def _sign(before: float, after: float) -> int:
    return (after > before) - (after < before)


def _count_wins(evaluation: str, by: str, pairs: Sequence[Pair], signs: Sequence[int | None]) -> list[Wins]:
    """Count the signs; nothing for an evaluation of which no pair was compared."""
    by_task: dict[str, list[int]] = {}
    for (episode, _), sign in zip(pairs, signs, strict=True):
        if sign is not None:
            by_task.setdefault(episode.task.task_id, []).append(sign)
    if not by_task:
        return []
    won, tied, lost = (
        estimate([each.count(wanted) / len(each) for each in by_task.values()], share=True) for wanted in (1, 0, -1)
    )
    test = permutation_test([math.fsum(each) / len(each) for each in by_task.values()])
    return [Wins(evaluation, by, won, tied, lost, test, signs.count(None))]
