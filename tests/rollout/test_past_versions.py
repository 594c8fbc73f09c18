"""Opponents from the past: which version is drawn, which are kept, and who has won."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.model import NamedModelConfig
from astune.errors import RunFolderError
from astune.rollout.past_versions import PastVersions, share_won
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict

TASK = Task("t", "?")


class Shelf:
    """Places that only note what stands in them."""

    def __init__(self, size: int) -> None:
        self.names = ["old", *(f"old@{place}" for place in range(1, size))]
        self.now, self.held = 0, dict.fromkeys(self.names[:1], 0)

    def keep(self, name: str) -> None:
        self.held[name] = self.now

    def save(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter").write_text(str(self.held[name]))

    def load(self, name: str, folder: Path, version: int) -> None:
        self.held[name] = int((folder / "adapter").read_text())
        assert self.held[name] == version


def make_past(size: int = 5, **keys: Any) -> tuple[PastVersions, Shelf]:
    shelf = Shelf(size)
    return PastVersions("old", NamedModelConfig(past_of="wolf", size=size, **keys), shelf), shelf


def played(version: int, passed: bool | None = None, **rewards: float) -> Episode:
    turns = [Turn("elder", (1,), (2,), [-1.0], version, "stop", model="old")]
    turns.append(Turn("wolf_1", (1,), (2,), [-1.0], 9, "stop", model="wolf"))
    verdict = Verdict(0.0, passed=passed)
    return Episode("e", TASK, tuple(turns), (), StopReason.COMPLETED, verdict=verdict, agent_rewards=rewards)


def play(past: PastVersions, shelf: Shelf, version: int, *episodes: Episode) -> dict[str, float]:
    shelf.now = version
    return past.finish_step(0, [Group(TASK, episodes)], ["wolf"], version)


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(2, 6), st.integers(1, 4))
def test_the_first_version_stays_and_the_others_are_the_newest(grown: list[int], size: int, every: int) -> None:
    past, shelf = make_past(size, every=every)
    version, kept = 0, [0]
    for more in grown:
        version += more
        play(past, shelf, version)
        if version - kept[-1] >= every:
            kept.append(version)
    expected = kept if len(kept) <= size else [kept[0], *kept[-(size - 1) :]]
    assert sorted(each.version for each in past.kept.values()) == expected
    assert {name: each.version for name, each in past.kept.items()} == shelf.held


def test_a_version_stays_as_long_as_a_step_that_met_it_is_under_way() -> None:
    past, shelf = make_past(2, every=1)
    play(past, shelf, 1)
    assert {past.draw(seed, 5) for seed in range(20)} == {"old", "old@1"}
    play(past, shelf, 2, played(1))  # of another step: the new one waits
    assert shelf.held["old@1"] == 1 and {past.draw(seed, 6) for seed in range(20)} == {"old"}
    shelf.now = 3
    past.finish_step(5, [Group(TASK, (played(1),))], ["wolf"], 3)
    assert shelf.held["old@1"] == past.kept["old@1"].version == 3
    assert {past.draw(seed, 7) for seed in range(20)} == {"old", "old@1"}


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40))
def test_a_draw_is_of_a_kept_version_by_the_seed_and_by_how_often_it_wins(games: list[tuple[int, bool]]) -> None:
    uniform, by_rate = make_past(every=1), make_past(every=1, draw="by_win_rate")
    for past, shelf in (uniform, by_rate):
        for version in range(1, 5):
            play(past, shelf, version)
        play(past, shelf, 4, *(played(version, not won) for version, won in games))
        assert [past.draw(seed, 0) for seed in range(20)] == [past.draw(seed, 0) for seed in range(20)]
    shares = Counter(uniform[0].draw(seed, 0) for seed in range(500))
    assert all(50 < shares[name] < 150 for name in uniform[1].names)
    kept = by_rate[0].kept
    total = sum(each.weight for each in kept.values())
    drawn = Counter(by_rate[0].draw(seed, 0) for seed in range(500))
    assert all(abs(drawn[name] / 500 - each.weight / total) < 0.12 for name, each in kept.items())
    won, lost = ([each.weight for each in kept.values() if each.met and each.won == end * each.met] for end in (1, 0))
    assert not won or not lost or min(won) > max(lost)


def test_who_has_won_is_told_by_the_agents_own_rewards_else_by_the_verdict() -> None:
    by_verdict = [share_won(played(0, passed), "old", ["wolf"]) for passed in (True, False)]
    assert by_verdict == [0.0, 1.0]
    rewards = [{"elder": 2.0, "wolf_1": 1.0}, {"elder": 1.0, "wolf_1": 2.0}, {"elder": 0.0}]
    assert [share_won(played(0, None, **each), "old", ["wolf"]) for each in rewards] == [1.0, 0.0, 0.5]
    nobody = played(0, True)
    assert share_won(replace(nobody, verdict=None), "old", ["wolf"]) is None
    assert share_won(nobody, "old", ["seer"]) is None
    past, shelf = make_past()
    assert play(past, shelf, 1, played(0, True), played(0, False)) == {"versions": 1.0, "won": 0.5}


@pytest.mark.fault(
    "Runs and resuming",
    "a run with opponents from the past is resumed, or their file in a checkpoint is damaged",
    "the same versions are drawn as if never stopped; an error that names the file",
)
def test_versions_go_on_as_they_were_saved(tmp_path: Path) -> None:
    past, shelf = make_past(3, every=1, draw="by_win_rate")
    for version in range(1, 5):
        play(past, shelf, version, *(played(each.version, version % 2 == 0) for each in past.kept.values()))
    past.save(tmp_path)
    again, other = make_past(3, every=1, draw="by_win_rate")
    again.load(tmp_path)
    assert again.kept == past.kept and other.held == shelf.held
    assert [again.draw(seed, 0) for seed in range(50)] == [past.draw(seed, 0) for seed in range(50)]
    (tmp_path / "old" / "versions.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"versions.json is damaged"):
        again.load(tmp_path)
