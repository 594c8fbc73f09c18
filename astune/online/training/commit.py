"""One commit: it either makes a version, or leaves everything as it was.

    begun      its row says that a trainer is at it
    planned    what it learns from is read
    updated    the updates are taken, in memory
    saved      the checkpoint is written, under a name that is no version's
    sealed     its checksums too, and all is on the disk
    renamed    it has its name
    writing    all rows are written, in a transaction that is still open
    written    that is done: the version is there

Killed before the last, it is as if it had not begun, but for a folder that nobody names and the next trainer deletes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.algorithm import observe
from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import AstuneError, RunFolderError, StoreError
from astune.monitor.disk import writing
from astune.online.store import aliases, audit, commits, learned, leases, succession, versions
from astune.online.store.commits import CommitRow
from astune.online.store.feedback import states as feedback
from astune.online.store.registry import DATA_DIGEST
from astune.online.store.versions import ModelVersion
from astune.online.training.checkpoint import new_folder, put_in_place, seal
from astune.online.training.commit_data import CommitData, DataSetup, make_commit_data
from astune.online.training.commit_input import CommitInput, read
from astune.online.training.learning import SHARE, CommitUpdates, learn
from astune.online.training.outcome import figures_of, outcomes_of, turns_of, waits_of, why_nothing
from astune.online.training.plan import Key, Plan
from astune.online.training.probes import make_probes
from astune.online.training.weights import Weights
from astune.store.database import Database
from astune.training.engine import Engine, Learner

logger = logging.getLogger(__name__)


PHASES = ("begun", "planned", "updated", "saved", "sealed", "renamed", "writing", "written")
LEASE = "train"
LEASE_SECONDS = 30.0


class LeaseLost(StoreError):
    """Another trainer has taken over: what this one did must not count."""


class BaseMoved(LeaseLost):
    """Another version is trained from by now, as after a rollback: what this trainer did must not count, and the commit
    is begun again."""


@dataclass(frozen=True)
class CommitSetup:
    """The parts that commits are made with. `clock` gives seconds since 1970; `phase` is told how far a commit has
    come."""

    config: Config
    database: Database
    weights: Weights
    versions: Path
    holder: str
    clock: Callable[[], float]
    phase: Callable[[str], None]


@dataclass(frozen=True)
class BaseChoice:
    """The version that a commit was to begin from, and the one that it began from, as the first was damaged."""

    wanted: ModelVersion
    base: ModelVersion

    @property
    def is_damaged(self) -> bool:
        return self.wanted.number != self.base.number


async def make(setup: CommitSetup, row: CommitRow) -> CommitRow:
    """Do what the row asks for; the row as it is afterwards. Raises LeaseLost, and RunFolderError where no version to
    begin from is whole; other errors are the commit's own and stand in its row."""
    wanted, now = _begin(setup, row)
    setup.phase("begun")
    rows = read(setup.database, setup.config, row, wanted.number, now)
    setup.phase("planned")
    base, engine = await _load_base(setup, row, wanted, now) if rows.plan.count else (wanted, None)
    try:
        if engine is None:
            return _end(setup, row, rows.plan, CommitData(), CommitUpdates())
        config = setup.config.astune
        length = config.model.max_model_len or engine.chat_format.context_length
        data_setup = DataSetup(config, engine.chat_format, setup.weights.estimator, length)
        data = _collect(rows, row, data_setup)
        passed: frozenset[Key] = frozenset()
        rules = config.online.commit
        while rows.plan.count and not data.is_enough(rules) and rows.plan.waiting["for_a_later"]:
            passed |= {item.key for item in rows.plan.items}
            rows = read(setup.database, setup.config, row, wanted.number, now, passed)
            data = _collect(rows, row, data_setup)
        if not data.is_enough(rules):
            waiting = CommitUpdates(undone=data.samples, waits="for_other_authors")
            return _end(setup, row, rows.plan, data, waiting)

        async def restore() -> Learner:
            setup.weights.mark_changed()
            return (await setup.weights.at(base)).learner

        setup.weights.mark_changed()
        # Back to the whole learning rate, slowly: twice of what did not go too far before.
        share = min(1.0, 2.0 * float(base.figures.get(SHARE, 1.0)))
        learner, done = await learn(engine.learner, data, config, restore, share)
        setup.weights.mark_changed()
        setup.phase("updated")
        if not done.taken:
            return _end(setup, row, rows.plan, data, done)
        return await _make_version(setup, row, BaseChoice(wanted, base), rows, data, done, learner, engine.chat_format)
    except LeaseLost:
        raise
    except (AstuneError, MemoryError, RuntimeError) as error:
        return _fail(setup, row, rows.plan, f"{type(error).__name__}: {error}")
    except sa.exc.IntegrityError:
        return _fail(setup, row, rows.plan, "answers that it had learned from were deleted meanwhile")


def _collect(rows: CommitInput, row: CommitRow, data_setup: DataSetup) -> CommitData:
    if not rows.plan.count:
        return CommitData()
    return make_commit_data(rows.plan, rows.recorded, rows.paths, rows.used, row.number, data_setup, rows.replayed)


def _begin(setup: CommitSetup, row: CommitRow) -> tuple[ModelVersion, float]:
    now = setup.clock()

    def begin(connection: sa.Connection) -> tuple[ModelVersion, float]:
        _keep_lease(setup, connection)
        feedback.settle(connection, setup.config.astune.online.feedback, now)
        base = succession.base_of(connection, setup.config.astune.online)
        began = commits.begin(connection, row, base.number, now)
        audit.say(connection, "train", "commit begun", str(row.number), now=now, base=base.number, holder=setup.holder)
        return base, began

    return setup.database.write(begin)


async def _load_base(
    setup: CommitSetup, row: CommitRow, wanted: ModelVersion, now: float
) -> tuple[ModelVersion, Engine]:
    """The wanted version, or where its checkpoint is damaged the last whole one that it goes back to; at its weights.

    Never the model as configured in place of what was made of it: a folder of versions that is not there, as of a disk
    that is not mounted, would have all training begin anew.
    """
    base, damage = wanted, None
    while True:
        try:
            engine = await setup.weights.at(base)
            break
        except RunFolderError as error:
            damage = damage or error
        with setup.database.reading() as connection:
            before = versions.parent_of(connection, base)
        if before is None or before.folder is None:
            raise RunFolderError(
                f"{damage}; no version before it is whole. Put the folder of versions back from a backup, or move it "
                "away with the store to begin with the model as configured"
            ) from damage
        base = before
    if damage is not None:
        _tell_damage(setup, row, wanted, base, damage, now)
    return base, engine


def _tell_damage(
    setup: CommitSetup, row: CommitRow, wanted: ModelVersion, base: ModelVersion, damage: RunFolderError, now: float
) -> None:
    said = "version %d is damaged, training goes on from version %d: %s"
    logger.error(said, wanted.number, base.number, damage)
    with setup.database.writing() as connection:
        _keep_lease(setup, connection)
        commits.begin(connection, row, base.number, now)
        why = str(damage)
        audit.say(connection, "train", "version damaged", str(wanted.number), now=now, base=base.number, why=why)


def _count_again(connection: sa.Connection, origin: BaseChoice, now: float) -> None:
    """Have what the versions from `base` to the wanted one were made from learned anew, as they are lost. Belongs into
    the transaction that makes the version: until then a checkpoint that is there again is gone on from."""
    lost, base = origin.wanted if origin.is_damaged else None, origin.base
    while lost is not None and lost.number != base.number:
        if lost.commit_id is not None:
            learned.forget(connection, lost.commit_id)
        count = feedback.mark_trained(connection, lost.number, "counts", f"v{lost.number} is lost", now, "train")
        audit.say(connection, "train", "version lost", str(lost.number), now=now, base=base.number, feedback=count)
        lost = versions.parent_of(connection, lost)


async def _make_version(
    setup: CommitSetup,
    row: CommitRow,
    origin: BaseChoice,
    rows: CommitInput,
    data: CommitData,
    done: CommitUpdates,
    learner: Learner,
    chat_format: ChatFormat,
) -> CommitRow:
    outcomes = outcomes_of(rows.plan, data, done, row.number, rows.paths)
    observe(setup.weights.estimator, outcomes.keep_done(data.groups))
    await learner.publish()
    probes = await make_probes(learner, chat_format)
    with setup.database.reading() as connection:
        number = versions.newest(connection).number + 1
    with new_folder(setup.versions) as folder, writing(folder):
        learner.save(folder)
        setup.weights.estimator.save(folder)
        setup.phase("saved")
        sha256 = seal(folder)
        setup.phase("sealed")
        name = put_in_place(folder, number, sha256)
    setup.phase("renamed")
    turns = list(turns_of(data, done))
    figures = figures_of(rows.plan, data, done, outcomes) | {"policy_version": float(number)}
    figures[DATA_DIGEST] = feedback.digest([vars(turn) | {"episode_id": None} for turn in turns])
    now = setup.clock()
    version = ModelVersion(
        number, origin.base.number, row.number, name, sha256, now, _settings(setup.config), figures, probes=probes
    )

    def write(connection: sa.Connection) -> None:
        _keep_lease(setup, connection)
        _check_base(setup, connection, origin)
        _count_again(connection, origin, now)
        versions.add(connection, version)
        _serve(setup, connection, version, origin, now)
        learned.write(connection, row.number, outcomes.episodes, turns)
        feedback.mark(connection, outcomes.used_feedback, "trained", f"v{number}", now)
        for reason, ids in outcomes.unused_feedback.items():
            feedback.mark(connection, ids, "left_out", reason, now)
        commits.end(connection, row.number, "made", now, figures, version=number)
        said: dict[str, Any] = {
            "commit": row.number,
            "parent": origin.base.number,
            "waits": waits_of(rows.plan, outcomes),
        }
        said["share_of_learning_rate"] = done.metrics[SHARE]
        audit.say(connection, "train", "version made", str(number), now=now, **said)
        if row.explicit and rows.plan.waiting["for_a_later"]:  # it means all there is: another version learns the rest
            until = row.asked if row.wanted.time_threshold is None else row.wanted.time_threshold
            commits.ask(connection, row.by, now, replace(row.wanted, time_threshold=until))
        setup.phase("writing")

    setup.database.write(write)
    setup.weights.mark_version(number)
    setup.phase("written")
    return _now(setup.database, row.number)


def _check_base(setup: CommitSetup, connection: sa.Connection, origin: BaseChoice) -> None:
    now = succession.base_of(connection, setup.config.astune.online).number
    if now != origin.wanted.number:
        raise BaseMoved(f"version {now} is trained from by now, and this began with version {origin.wanted.number}")


def _serve(
    setup: CommitSetup, connection: sa.Connection, version: ModelVersion, origin: BaseChoice, now: float
) -> None:
    """Let the new version answer, by the strategy `at_once`, or where it replaces a damaged one."""
    online = setup.config.astune.online
    if origin.is_damaged or online.commit.base != aliases.CHAMPION:
        aliases.promote(connection, version.number, role="train", why="made", now=now)
    elif online.release.strategy == "at_once":
        succession.promote_made(connection, online.serve.every_commits, now)


def _end(setup: CommitSetup, row: CommitRow, plan: Plan, data: CommitData, done: CommitUpdates) -> CommitRow:
    """End a commit that made no version. Nothing is changed but its row."""
    outcomes = outcomes_of(plan, data, done, row.number, {})
    figures: dict[str, Any] = figures_of(plan, data, done, outcomes)
    figures["why"] = why_nothing(plan, data, done, setup.config.astune.online.commit)
    left_out = Counter(str(episode.reason) for episode in outcomes.episodes)  # it still counts for the next commit
    return _close(setup, row, "empty", figures, None, left_out + Counter(waits_of(plan, outcomes)))


def _fail(setup: CommitSetup, row: CommitRow, plan: Plan, said: str) -> CommitRow:
    waits = {"for_another": plan.count + len(plan.left_out), **plan.waiting}
    return _close(setup, row, "failed", {"rated": float(sum(waits.values()))}, said, waits)


def _close(
    setup: CommitSetup,
    row: CommitRow,
    state: commits.Ended,
    figures: dict[str, Any],
    error: str | None,
    waits: Mapping[str, int],
) -> CommitRow:
    now = setup.clock()

    def close(connection: sa.Connection) -> None:
        _keep_lease(setup, connection)
        commits.end(connection, row.number, state, now, figures, error=error)
        said = {"why": error or figures.get("why"), "waits": dict(waits)}
        audit.say(connection, "train", f"commit {state}", str(row.number), now=now, **said)

    setup.database.write(close)
    return _now(setup.database, row.number)


def _keep_lease(setup: CommitSetup, connection: sa.Connection) -> None:
    if not leases.keep(connection, LEASE, setup.holder, setup.clock(), LEASE_SECONDS):
        raise LeaseLost("another trainer has taken over, as this one was not heard of for too long")


def _now(database: Database, number: int) -> CommitRow:
    with database.reading() as connection:
        return commits.after(connection, number - 1)[0]


def _settings(config: Config) -> dict[str, Any]:
    """The part of the configuration that a version is made by."""
    whole = config.astune.model_dump(mode="json")
    kept = {name: whole[name] for name in ("backbone", "model", "algorithm", "trainer", "seed")}
    return kept | {"online": {"commit": whole["online"]["commit"], "feedback": whole["online"]["feedback"]}}
