"""In whatever order it happens: a run is started, killed at any write, interrupted, goes on, meets a full disk, is
given other options and is looked at. Its folder can be read at any time, and in the end it is that of a run that was
never stopped, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from astune.errors import AstuneError, ConfigError
from astune.monitor import RunDir, read_episodes, read_metrics
from astune.monitor.checkpoint_names import find_checkpoint
from astune.store.database import open_database
from astune.viewer import write_report
from tests.training.dying import checkpoints_of, play, play_until, write_job
from tests.training.test_loop import TIMES
from tests.training.test_run_store import check_equal

LONGEST = 6
BEST = "step_000002"
KINDS = {
    "best": ("astune.trainer.keep_best=eval/greedy/reward", "astune.trainer.updates_per_step=2"),
    "ahead": ("astune.synchronizer.style=async", "astune.synchronizer.max_staleness=2"),
    "stages": ("astune.stages=[{trainer: {total_steps: 2}}, {trainer: {total_steps: 4}}]",),
}
"""Runs that remember more than the newest checkpoint and their files."""
AT_ODDS = ("policy_age/mean", "policy_age/max", "episodes/spanning_versions")


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The figures that are equal in two runs of one seed."""
    rows = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    return [{k: v for k, v in row.items() if not {*TIMES} & {*k.split("/")} and k not in AT_ODDS} for row in rows]


def episodes_of(run: Path) -> dict[str, list[Any]]:
    """Of each file, the episodes in their order."""
    return {
        path.name: [(each.step, each.episode.episode_id, each.episode.reward) for each in read_episodes(path)]
        for path in (run / "episodes").glob("*.jsonl")
    }


class RunFolder(RuleBasedStateMachine):
    """A run of one kind, which others of that kind are compared with."""

    folder: Path
    straight: dict[str, Path]
    """By kind, a run of `LONGEST` steps that nothing stopped and that kept every checkpoint."""

    @initialize(kind=st.sampled_from(sorted(KINDS)), save_every=st.integers(0, 2), stored=st.booleans())
    def begin(self, kind: str, save_every: int, stored: bool) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.conf = write_job(self.folder)
        self.kind, self.save_every, self.stored = kind, save_every, stored
        self.total = LONGEST if kind == "stages" else 3
        self.url = f"sqlite:///{self.folder}/runs.db"

    @property
    def options(self) -> list[str]:
        ends = (f"total_steps={self.total}", f"save_every={self.save_every}")
        store = [f"astune.monitor.store={self.url}"] * self.stored
        return [*KINDS[self.kind], *(f"astune.trainer.{each}" for each in ends), *store]

    def run(self) -> RunDir | None:
        """The run that would go on; None before a checkpoint is whole."""
        try:
            return RunDir.newest(self.folder / "runs" / "test", "job")
        except ConfigError:
            return None

    @rule(at=st.integers(1, 110))
    def kill(self, at: int) -> None:
        assert play_until("kill", at, self.conf, self.options, self.run() is not None) in (-9, 0)

    @rule(at=st.integers(1, 90))
    def interrupt(self, at: int) -> None:
        assert play_until("interrupt", at, self.conf, self.options, self.run() is not None) in (0, 130)

    @rule(at=st.integers(0, 90))
    def fill_the_disk(self, at: int) -> None:
        assert play_until("disk", at, self.conf, self.options, self.run() is not None) in (0, 1, 2)

    @precondition(lambda self: self.kind != "stages" and self.total < LONGEST)
    @rule()
    def want_more_steps(self) -> None:
        self.total += 1

    @rule(save_every=st.integers(0, 2))
    def save_more_or_less_often(self, save_every: int) -> None:
        self.save_every = save_every

    @precondition(lambda self: self.run() is not None)
    @rule()
    def change_what_is_learned(self) -> None:
        """It is refused, and nothing is changed."""
        run = self.run()
        assert run is not None
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        with pytest.raises(ConfigError, match=r"astune\.seed: 42 before, 7 now"):
            play(self.conf, [*self.options, "astune.seed=7"], resume=True)
        after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        assert {**after, run.path / "lock": b""} == {**before, run.path / "lock": b""}

    @precondition(lambda self: (run := self.run()) is not None and len(run.checkpoints()) > 1)
    @rule()
    def damage_the_newest_checkpoint(self) -> None:
        """It is put aside as the run goes on."""
        run = self.run()
        assert run is not None
        newest = run.checkpoints()[-1]
        (newest / "counts.json").write_text("{}")
        with pytest.raises(AstuneError, match=r"is broken: counts\.json is not as it was written"):
            find_checkpoint(str(run.path))
        self.finish()

    @precondition(lambda self: self.run() is not None)
    @rule()
    def look(self) -> None:
        run = self.run()
        assert run is not None
        assert "<html" in write_report(run.path).read_text()
        assert find_checkpoint(str(run.path)) == run.checkpoints()[-1]

    @rule()
    def finish(self) -> None:
        """A run that goes to its end is the one that was never stopped. Once more, it does nothing."""
        for _ in range(2):
            report = play(self.conf, self.options, resume=self.run() is not None)
            assert (report.status, report.steps) == ("completed", self.total)
        run = report.run_dir
        until = [row for row in rows_of(self.straight[self.kind]) if row["step"] <= self.total]
        assert rows_of(run) == until
        wanted = episodes_of(self.straight[self.kind])
        assert episodes_of(run) == {
            name: [each for each in episodes if each[0] <= self.total] for name, episodes in wanted.items()
        }
        kept = {f"step_{self.total:06d}"} | ({BEST} if self.kind in ("best", "stages") else set())
        assert checkpoints_of(run).keys() == kept
        if self.kind == "best":
            assert report.summary["best_checkpoint"]["step"] == 2
            assert find_checkpoint(f"{run}@best") == run / "checkpoints" / BEST
        if self.stored:
            database = open_database(self.url)
            check_equal(database, run)
            database.close()

    @invariant()
    def the_folder_can_be_read_and_nothing_in_it_is_doubled(self) -> None:
        straight = self.straight[self.kind]
        rows, checkpoints, episodes = rows_of(straight), checkpoints_of(straight), episodes_of(straight)
        for run in (self.folder / "runs" / "test").glob("job*"):
            found = rows_of(run)
            assert found == rows[: len(found)]
            for name, played in episodes_of(run).items():
                assert played == episodes[name][: len(played)]
            for name, weights in checkpoints_of(run).items():
                assert weights == checkpoints[name]
                assert int(name[5:]) in {row["step"] for row in found}

    def teardown(self) -> None:
        self.finish()


@pytest.mark.fault(
    "Runs and resuming",
    "a run is killed at any write, interrupted, goes on, and is given other options, in any order",
    "its folder can be read at any time; in the end it is bit for bit that of a run that was never stopped",
)
@pytest.mark.fault(
    "Runs and resuming",
    "a run whose rollouts are ahead of training (`astune.synchronizer.style: async`) is killed anywhere in a step",
    "resumed, it plays again what was not trained, under the same names, and trains nothing twice",
)
@pytest.mark.fault(
    "Records and checkpoints",
    "a process dies while it writes a checkpoint",
    "the half-written one is never taken; the last complete one is",
)
@pytest.mark.fault(
    "Records and checkpoints",
    "the newest checkpoint is damaged, of a run that is finished too, and an older one is kept",
    "the run goes on from that one; figures of later steps are forgotten, and the steps are done again",
)
@pytest.mark.fault(
    "The store",
    "a run that writes to a database is killed while a step is recorded, and resumed",
    "the database has every episode once, as the files have",
)
def test_any_sequence_of_starts_kills_full_disks_and_changes(tmp_path: Path) -> None:
    straight = {}
    for kind, options in KINDS.items():
        more = (f"astune.trainer.total_steps={LONGEST}", "astune.trainer.keep_checkpoints=99")
        straight[kind] = play(write_job(tmp_path / kind), [*options, *more], resume=False).run_dir
    machine = type("Here", (RunFolder,), {"folder": tmp_path / "any", "straight": straight})
    phases = [Phase.explicit, Phase.generate]  # a sequence that fails is short anyway
    some = settings(phases=phases, max_examples=8, stateful_step_count=7, deadline=None)
    run_state_machine_as_test(machine, settings=some)
