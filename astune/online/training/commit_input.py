"""What a commit works on: the plan, the answers in it, and episodes of earlier commits."""

from __future__ import annotations

import random
from dataclasses import dataclass

import sqlalchemy as sa

from astune.config.schema import Config
from astune.online.store import learned, versions
from astune.online.store.answers import find_judged, load_answers
from astune.online.store.commits import CommitRow, Wanted
from astune.online.store.feedback.judgements import judgements, preferences
from astune.online.store.learned import TrainedEpisode
from astune.online.store.recorded import RecordedAnswer, load_headings, load_recorded
from astune.online.training.episodes import exclude_other_temperatures
from astune.online.training.plan import Key, Plan, Situation, plan_of
from astune.store.database import Database

MOST_REPLAYED_FROM = 10_000
"""The last so many trained episodes are those that may be learned from again."""


@dataclass(frozen=True)
class CommitInput:
    """The rows that a commit reads."""

    plan: Plan
    recorded: dict[str, RecordedAnswer]
    paths: dict[str, tuple[str, ...]]
    used: set[int]
    replayed: list[list[TrainedEpisode]]


def read(
    database: Database, config: Config, row: CommitRow, base: int, now: float, passed: frozenset[Key] = frozenset()
) -> CommitInput:
    """The rows that a commit works on, as they are now, without the items that it has `passed`."""
    with database.reading() as connection:
        plan = plan_now(connection, config, row.wanted, base, now, explicit=row.explicit, passed=passed)
        named = [msg_id for pair in plan.pairs for msg_id in pair.msg_ids]
        known = load_answers(connection, named)
        paths = {msg_id: find_judged(known, [msg_id]) for msg_id in named}
        wanted = [msg_id for candidate in plan.candidates for msg_id in candidate.msg_ids]
        wanted += [msg_id for path in paths.values() for msg_id in path]
        used = learned.find_trained_turns(connection, wanted)
        replayed = replay(connection, config, plan, base)
        again = [msg_id for group in replayed for episode in group for msg_id in episode.msg_ids]
        recorded = load_recorded(connection, wanted + again)
        if config.astune.backbone == "trinity":
            recorded = exclude_other_temperatures(config.astune.rollout.temperature, recorded)
        return CommitInput(plan, recorded, paths, used, replayed)


def replay(connection: sa.Connection, config: Config, plan: Plan, base: int) -> list[list[TrainedEpisode]]:
    """Groups of earlier commits, until `astune.online.commit.replay_share` of all that is learned by rewards is theirs.
    Which ones is drawn from the seed and the version that is trained."""
    share = config.astune.online.commit.replay_share
    most = round(share / (1.0 - share) * sum(each.by_reward for each in plan.candidates))
    if not most:
        return []
    groups: dict[tuple[int, str], list[TrainedEpisode]] = {}
    for episode in learned.load_trained(connection, MOST_REPLAYED_FROM):
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
    """Plan what a commit would learn from now, and what waits. `explicit`: one that somebody asked for. `passed`: items
    in which it has found nothing to learn from."""
    online = config.astune.online
    judged, compared = judgements(connection, online.feedback), preferences(connection)
    ids = [msg_id for each in judged for msg_id in each.msg_ids]
    ids += [msg_id for each in compared for msg_id in (each.better, each.worse)]
    headings, tree = load_headings(connection, ids), versions.load_tree(connection)
    behind = {number: tree.distance(base, number) for number in {each.version for each in headings.values()}}
    situation = Situation(online.commit, wanted, behind, now, config.astune.rollout.num_repeat, explicit, passed)
    return plan_of(judged, compared, headings, situation)
