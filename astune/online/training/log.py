"""The figures of commits: `metrics.jsonl` and trackers, and lines on the terminal; and the status of a service."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astune.config.online import FeedbackConfig
from astune.config.schema import Config
from astune.monitor.metrics import MetricsLog, read_metrics
from astune.monitor.run_dir import RunDir
from astune.monitor.trackers import load_trackers, open_trackers
from astune.online.store import aliases, commits, leases, releases, versions
from astune.online.store.commits import CommitRow
from astune.online.store.feedback.figures import feedback_figures
from astune.online.store.feedback.following import FollowFigures, follow_figures
from astune.online.store.feedback.judgements import judgements, preferences
from astune.online.store.releases import Release
from astune.online.store.servers import ServerRow, every_server
from astune.online.store.versions import ModelVersion
from astune.online.training.commit import LEASE
from astune.online.training.learning import SHARE
from astune.store.database import Database

logger = logging.getLogger(__name__)

COLUMNS = ("commit", "asked by", "rated", "trained", "left out", "wait", "reward (n)", "KL", "made")
WIDTHS = (6, 8, 6, 7, 8, 6, 13, 8, 7)


class CommitLog:
    """Writes the figures of every commit once, with the commit's number as the step. What a trainer that was killed did
    not get to write is written by the next one, from the database."""

    def __init__(self, folder: Path, database: Database, config: Config) -> None:
        run_dir = RunDir(folder)
        folder.mkdir(parents=True, exist_ok=True)
        there = read_metrics(run_dir.metrics_path) if run_dir.metrics_path.exists() else []
        self._written = max((int(row["step"]) for row in there), default=0)
        trackers = load_trackers(config.astune.monitor)
        self._log = MetricsLog(run_dir, open_trackers(trackers, config, run_dir, logger.warning))
        self._database = database

    def catch_up(self) -> list[CommitRow]:
        """Write the commits that ended since; they are returned."""
        with self._database.reading() as connection:
            ended = [row for row in commits.after(connection, self._written) if row.ended is not None]
        for row in ended:
            figures = {name: value for name, value in (row.figures or {}).items() if isinstance(value, int | float)}
            self._log.log(row.number, {**figures, "made": float(row.state == "made")})
            self._written = row.number
        self._log.sync()
        return ended

    def close(self) -> None:
        self._log.close("interrupted")


def header() -> str:
    return "  ".join(name.rjust(width) for name, width in zip(COLUMNS, WIDTHS, strict=True))


def line_of(row: CommitRow) -> str:
    """A commit as a line below `header`; one that made no version says why."""
    figures = row.figures or {}

    def count(name: str) -> str:
        return f"{figures.get(name, 0):g}"

    reward = f"{figures['reward/mean']:.3f} ({figures['reward/n']:g})" if "reward/mean" in figures else "-"
    kl = f"{figures['kl/from_version_before']:.2g}" if row.state == "made" else "-"
    made = f"v{row.version}" if row.version is not None else row.state
    counts = [count(name) for name in ("rated", "episodes/trained", "episodes/left_out", "episodes/waiting")]
    cells = [str(row.number), row.by, *counts, reward, kl, made]
    line = "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    why = row.error or figures.get("why")
    left_out = ", ".join(
        f"{value:g} {name.removeprefix('left_out/')}" for name, value in figures.items() if name.startswith("left_out/")
    )
    notes = [note for note in (why, f"left out: {left_out}" if left_out else "", *_remarks(figures)) if note]
    return "\n".join([line, *(f"        {note}" for note in notes)])


def _remarks(figures: Mapping[str, Any]) -> Iterator[str]:
    if failing := figures.get("failing_tools"):
        yield failing
    share = figures.get(SHARE, 1.0)
    if share < 1:
        yield f"by {share:.2g} of astune.trainer.learning_rate, to stay within astune.online.commit.max_kl"
    if cut := figures.get("reward/cut"):
        yield f"{cut:g} sums of named rewards were beyond astune.online.feedback.least or most, and count as those"
    if many := figures.get("authors/bounded"):
        share = "their share, astune.online.commit.most_per_author"
        yield f"{many:g} of {figures['authors']:g} authors said more than {share}: it weighs less"
    incomplete = figures.get("groups/incomplete", 0.0)
    if incomplete:
        groups = "1 group has" if incomplete == 1 else f"{incomplete:g} groups have"
        size = f" ({figures['groups/size']:g})" if "groups/size" in figures else ""
        yield (
            f"{groups} fewer answers than astune.rollout.num_repeat{size}, the number at which a group is "
            "complete: set it to as many as come (TrainingRunner: repeat_time), or other commits wait for the rest"
        )


MOST_COMMITS = 20


@dataclass(frozen=True)
class ServiceStatus:
    """`versions` are those that were made, of which `champion` is to answer; `feedback` counts by state
    (`store.feedback.rules.STATES`); `rated` are the episodes that no version was made from yet; `trainer` is the
    process that has the lease; `not_served` says why another version than champion answers. `servers` are all that
    have a row, dead ones too."""

    now: float
    versions: Sequence[ModelVersion]
    commits: Sequence[CommitRow]
    feedback: Mapping[str, int]
    rated: int
    trainer: str | None
    champion: int
    not_served: str | None = None
    following: Sequence[FollowFigures] = ()
    """Of judges of what users did after an answer."""
    servers: Sequence[ServerRow] = ()
    release: Release | None = None
    """The last one."""
    releaser: str | None = None
    """The process that has the lease of releases."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def status_of(database: Database, now: float) -> ServiceStatus:
    """Read the status at `now`, in seconds since 1970."""
    with database.reading() as connection:
        rated = len(judgements(connection, FeedbackConfig())) + len(preferences(connection))
        return ServiceStatus(
            now,
            [version for version in versions.every(connection) if version.number],
            commits.recent(connection, MOST_COMMITS),
            {state: count for state, count in feedback_figures(connection).by_state.items() if count},
            rated,
            leases.find_holder(connection, LEASE, now),
            aliases.champion(connection).number,
            versions.why_not_served(connection),
            follow_figures(connection, FeedbackConfig()),
            every_server(connection),
            next(iter(releases.recent(connection, 1)), None),
            leases.find_holder(connection, releases.LEASE, now),
        )
