from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import to_samples
from astune.algorithm.batch_rules import Ruled
from astune.config.schema import AlgorithmConfig
from astune.context_tracker.merge import TurnForest
from astune.methods.rft import Rft
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict

ATTEMPTS = st.lists(st.tuples(st.sampled_from([None, 0.0, 0.5, 1.0]), st.integers(1, 3)), min_size=1, max_size=6)


def group(number: int, attempts: list[tuple[float | None, int]]) -> Group:
    task, episodes = Task(f"t{number}", "q"), []
    for place, (reward, said) in enumerate(attempts):
        turns = (Turn("a", [9], [said, said], [-1.0, -1.0], 0, "stop"),)
        verdict = None if reward is None else Verdict(reward, reward > 0)
        lines = TurnForest(turns).timelines()
        episodes.append(Episode(f"{number}/{place}", task, turns, lines, StopReason.COMPLETED, verdict=verdict))
    return Group(task, tuple(episodes))


@given(st.lists(ATTEMPTS, min_size=1, max_size=4), st.none() | st.integers(1, 3))
def test_what_is_kept_is_right_and_said_once_and_the_best_of_its_task(
    tasks: list[list[tuple[float | None, int]]], most: int | None
) -> None:
    groups = [group(number, attempts) for number, attempts in enumerate(tasks)]
    method = Rft(AlgorithmConfig(method="rft", keep_per_task=most))
    ruled = method.choose(Ruled(groups))
    kept = 0
    for attempts, played, left in zip(tasks, groups, ruled.groups, strict=True):
        best: dict[int, float] = {}
        for reward, said in attempts:
            if reward:
                best[said] = max(best.get(said, 0.0), reward)
        wanted = sorted(best.values(), reverse=True)[:most]
        chosen = [each for each in left.episodes if each.verdict is not None]
        assert sorted((each.verdict.reward for each in chosen if each.verdict), reverse=True) == wanted
        assert len({tuple(each.turns[0].output_ids) for each in chosen}) == len(chosen)
        assert sum(each.verdict is None for each in left.episodes) == sum(reward is None for reward, _ in attempts)
        assert len(played.episodes) == len(attempts)
        kept += len(wanted)
    reasons = Counter(why for why, _ in ruled.left_out)
    assert ruled.metrics["rejection/kept"] == kept
    assert all(ruled.metrics[f"rejection/{why}"] == reasons[why] for why in ("wrong", "repeated", "surplus"))
    samples, receipt = to_samples(ruled.groups, method.estimator(), left_out=ruled.left_out)
    assert len(samples) == kept and all(sample.advantages == (1.0,) for sample in samples)
    assert receipt.trained == 2 * kept and receipt.sampled == 2 * sum(map(len, tasks))
    assert receipt.sampled == receipt.trained + sum(receipt.dropped.values())
