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

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.algorithm import observe
from astune.config.schema import Config
from astune.errors import AstuneError, StoreError
from astune.online.training.checkpoint import new_folder, put_in_place, seal
from astune.online.training.episodes import sampled_at
from astune.online.training.learning import SHARE, CommitLearned, learn
from astune.online.training.lesson import CommitLesson, Workshop, lesson_of
from astune.online.training.outcome import Outcomes, figures_of, outcomes_of, turns_of, waits_of, why_nothing
from astune.online.training.plan import Key, Plan, Situation, plan_of
from astune.online.training.weights import Weights
from astune.store import audit, commits, learned, leases, versions
from astune.store.answers import judged_answers, known_answers
from astune.store.commits import CommitRow, Wanted
from astune.store.database import Database
from astune.store.feedback import states as feedback
from astune.store.feedback.judgements import judgements, preferences
from astune.store.learned import TrainedEpisode
from astune.store.recorded import RecordedAnswer, headings, recorded_answers
from astune.store.versions import ModelVersion
from astune.training.engine import Learner

PHASES = ("begun", "planned", "updated", "saved", "sealed", "renamed", "writing", "written")
LEASE = "train"
LEASE_SECONDS = 30.0
MOST_REPLAYED_FROM = 10_000
"""The last so many trained episodes are those that may be learned from again."""


class LeaseLost(StoreError):
    """Another trainer has taken over: what this one did must not count."""


@dataclass(frozen=True)
class Shop:
    """What commits are made with. `clock` gives seconds since 1970; `phase` is told how far a commit has come."""

    config: Config
    database: Database
    weights: Weights
    versions: Path
    holder: str
    clock: Callable[[], float]
    phase: Callable[[str], None]


@dataclass(frozen=True)
class CommitInput:
    """What a commit reads."""

    plan: Plan
    recorded: dict[str, RecordedAnswer]
    paths: dict[str, tuple[str, ...]]
    used: set[int]
    replayed: list[list[TrainedEpisode]]


async def make(shop: Shop, row: CommitRow) -> CommitRow:
    """Do what the row asks for; the row as it is afterwards. Raises LeaseLost, and RunFolderError where the version to
    begin from cannot be loaded; other errors are the commit's own and stand in its row."""
    base, now = _begin(shop, row)
    shop.phase("begun")
    rows = read(shop.database, shop.config, row, base.number, now)
    shop.phase("planned")
    engine = None if not rows.plan.count else await shop.weights.at(base)
    try:
        if engine is None:
            return _end(shop, row, rows.plan, CommitLesson(), CommitLearned())
        config = shop.config.astune
        length = config.model.max_model_len or engine.chat_format.context_length
        workshop = Workshop(config, engine.chat_format, shop.weights.estimator, length)
        lesson = _lesson(rows, row, workshop)
        passed: frozenset[Key] = frozenset()
        while rows.plan.count and lesson.is_empty and rows.plan.waiting["for_a_later"]:
            passed |= {item.key for item in rows.plan.items}
            rows = read(shop.database, shop.config, row, base.number, now, passed)
            lesson = _lesson(rows, row, workshop)
        if lesson.is_empty:
            return _end(shop, row, rows.plan, lesson, CommitLearned())

        async def restore() -> Learner:
            shop.weights.changing()
            return (await shop.weights.at(base)).learner

        shop.weights.changing()
        # Back to the whole learning rate, slowly: twice of what did not go too far before.
        share = min(1.0, 2.0 * float(base.figures.get(SHARE, 1.0)))
        learner, done = await learn(engine.learner, lesson, config, restore, share)
        shop.weights.changing()
        shop.phase("updated")
        if not done.taken:
            return _end(shop, row, rows.plan, lesson, done)
        return await _make_version(shop, row, base, rows, lesson, done, learner)
    except LeaseLost:
        raise
    except (AstuneError, MemoryError, RuntimeError) as error:
        return _fail(shop, row, rows.plan, f"{type(error).__name__}: {error}")
    except sa.exc.IntegrityError:
        return _fail(shop, row, rows.plan, "answers that it had learned from were deleted meanwhile")


def _lesson(rows: CommitInput, row: CommitRow, workshop: Workshop) -> CommitLesson:
    if not rows.plan.count:
        return CommitLesson()
    return lesson_of(rows.plan, rows.recorded, rows.paths, rows.used, row.number, workshop, rows.replayed)


def read(
    database: Database, config: Config, row: CommitRow, base: int, now: float, passed: frozenset[Key] = frozenset()
) -> CommitInput:
    """The rows that a commit works on, as they are now, without the items that it has `passed`."""
    with database.reading() as connection:
        plan = plan_now(connection, config, row.wanted, base, now, explicit=row.explicit, passed=passed)
        named = [msg_id for pair in plan.pairs for msg_id in pair.msg_ids]
        known = known_answers(connection, named)
        paths = {msg_id: judged_answers(known, [msg_id]) for msg_id in named}
        wanted = [msg_id for candidate in plan.candidates for msg_id in candidate.msg_ids] + named
        used = learned.trained_turns(connection, wanted)
        replayed = replay(connection, config, plan, base)
        again = [msg_id for group in replayed for episode in group for msg_id in episode.msg_ids]
        recorded = recorded_answers(connection, wanted + again)
        if config.astune.backbone == "trinity":
            recorded = sampled_at(config.astune.rollout.temperature, recorded)
        return CommitInput(plan, recorded, paths, used, replayed)


def replay(connection: sa.Connection, config: Config, plan: Plan, base: int) -> list[list[TrainedEpisode]]:
    """Groups of earlier commits, until `astune.online.commit.replay_share` of all that is learned by rewards is theirs.
    Which ones is drawn from the seed and the version that is trained."""
    share = config.astune.online.commit.replay_share
    most = round(share / (1.0 - share) * sum(each.by_reward for each in plan.candidates))
    if not most:
        return []
    groups: dict[tuple[int, str], list[TrainedEpisode]] = {}
    for episode in learned.trained_by_rewards(connection, MOST_REPLAYED_FROM):
        groups.setdefault((episode.commit, episode.task_id or episode.episode_id), []).append(episode)
    keys = list(groups)
    random.Random(f"{config.astune.seed}/replay/{base}").shuffle(keys)
    found: list[list[TrainedEpisode]] = []
    for key in keys:
        if sum(map(len, found)) + len(groups[key]) <= most:
            found.append(groups[key])
    return found


def plan_now(
    connection: sa.Connection,
    config: Config,
    wanted: Wanted,
    base: int,
    now: float,
    *,
    explicit: bool = False,
    passed: frozenset[Key] = frozenset(),
) -> Plan:
    """What a commit would learn from now, and what waits. `explicit`: one that somebody asked for. `passed`: items in
    which it has found nothing to learn from."""
    online = config.astune.online
    judged, compared = judgements(connection, online.feedback), preferences(connection)
    ids = [msg_id for each in judged for msg_id in each.msg_ids]
    ids += [msg_id for each in compared for msg_id in (each.better, each.worse)]
    situation = Situation(online.commit, wanted, base, now, config.astune.rollout.num_repeat, explicit, passed)
    return plan_of(judged, compared, headings(connection, ids), situation)


def _begin(shop: Shop, row: CommitRow) -> tuple[ModelVersion, float]:
    now = shop.clock()

    def begin(connection: sa.Connection) -> tuple[ModelVersion, float]:
        _keep_lease(shop, connection)
        feedback.settle(connection, shop.config.astune.online.feedback, now)
        base = versions.newest(connection)
        began = commits.begin(connection, row, base.number, now)
        audit.say(connection, "train", "commit begun", str(row.number), now=now, base=base.number, holder=shop.holder)
        return base, began

    return shop.database.write(begin)


async def _make_version(
    shop: Shop,
    row: CommitRow,
    base: ModelVersion,
    rows: CommitInput,
    lesson: CommitLesson,
    done: CommitLearned,
    learner: Learner,
) -> CommitRow:
    outcomes = outcomes_of(rows.plan, lesson, done, row.number, rows.paths)
    observe(shop.weights.estimator, outcomes.settled(lesson.groups))
    await learner.publish()
    number = base.number + 1
    with new_folder(shop.versions) as folder:
        learner.save(folder)
        shop.weights.estimator.save(folder)
        shop.phase("saved")
        sha256 = seal(folder)
        shop.phase("sealed")
        name = put_in_place(folder, number, sha256)
    shop.phase("renamed")
    figures = figures_of(rows.plan, lesson, done, outcomes) | {"policy_version": float(number)}
    now = shop.clock()
    version = ModelVersion(number, base.number, row.number, name, sha256, now, _settings(shop.config), figures)

    def write(connection: sa.Connection) -> None:
        _keep_lease(shop, connection)
        versions.add(connection, version)
        _write(connection, row.number, lesson, done, outcomes, now, number)
        commits.end(connection, row.number, "made", now, figures, version=number)
        said: dict[str, Any] = {"commit": row.number, "parent": base.number, "waits": waits_of(rows.plan, outcomes)}
        said["share_of_learning_rate"] = done.metrics[SHARE]
        audit.say(connection, "train", "version made", str(number), now=now, **said)
        _ask_for_the_rest(connection, row, rows.plan, now)
        shop.phase("writing")

    shop.database.write(write)
    shop.weights.became(number)
    shop.phase("written")
    return _now(shop.database, row.number)


def _ask_for_the_rest(connection: sa.Connection, row: CommitRow, plan: Plan, now: float) -> None:
    """Who asks for a commit means all that is there: what one version may not learn from, another does right after."""
    if row.explicit and plan.waiting["for_a_later"]:
        until = row.asked if row.wanted.time_threshold is None else row.wanted.time_threshold
        commits.ask(connection, row.by, now, replace(row.wanted, time_threshold=until))


def _write(
    connection: sa.Connection,
    commit: int,
    lesson: CommitLesson,
    done: CommitLearned,
    outcomes: Outcomes,
    now: float,
    version: int,
) -> None:
    learned.write(connection, commit, outcomes.episodes, turns_of(lesson, done))
    feedback.mark(connection, outcomes.used_feedback, "trained", f"v{version}", now)
    for reason, ids in outcomes.unused_feedback.items():
        feedback.mark(connection, ids, "left_out", reason, now)


def _end(shop: Shop, row: CommitRow, plan: Plan, lesson: CommitLesson, done: CommitLearned) -> CommitRow:
    """End a commit that made no version. Nothing is changed but its row."""
    outcomes = outcomes_of(plan, lesson, done, row.number, {})
    figures: dict[str, Any] = figures_of(plan, lesson, done, outcomes)
    figures["why"] = why_nothing(plan, lesson, done, shop.config.astune.online.commit)
    left_out = Counter(str(episode.reason) for episode in outcomes.episodes)  # it still counts for the next commit
    return _close(shop, row, "empty", figures, None, left_out + Counter(waits_of(plan, outcomes)))


def _fail(shop: Shop, row: CommitRow, plan: Plan, said: str) -> CommitRow:
    waits = {"for_another": plan.count + len(plan.left_out), **plan.waiting}
    return _close(shop, row, "failed", {"rated": float(sum(waits.values()))}, said, waits)


def _close(
    shop: Shop,
    row: CommitRow,
    state: commits.Ended,
    figures: dict[str, Any],
    error: str | None,
    waits: Mapping[str, int],
) -> CommitRow:
    now = shop.clock()

    def close(connection: sa.Connection) -> None:
        _keep_lease(shop, connection)
        commits.end(connection, row.number, state, now, figures, error=error)
        said = {"why": error or figures.get("why"), "waits": dict(waits)}
        audit.say(connection, "train", f"commit {state}", str(row.number), now=now, **said)

    shop.database.write(close)
    return _now(shop.database, row.number)


def _keep_lease(shop: Shop, connection: sa.Connection) -> None:
    if not leases.keep(connection, LEASE, shop.holder, shop.clock(), LEASE_SECONDS):
        raise LeaseLost("another trainer has taken over, as this one was not heard of for too long")


def _now(database: Database, number: int) -> CommitRow:
    with database.reading() as connection:
        return commits.after(connection, number - 1)[0]


def _settings(config: Config) -> dict[str, Any]:
    """What a version is made by, of the configuration."""
    whole = config.astune.model_dump(mode="json")
    kept = {name: whole[name] for name in ("backbone", "model", "algorithm", "trainer", "seed")}
    return kept | {"online": {"commit": whole["online"]["commit"], "feedback": whole["online"]["feedback"]}}
