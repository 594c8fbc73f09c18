"""Show what another judge says of recorded episodes: `astune rescore`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from astune.cli.online.export import new_file
from astune.config.schema import AstuneConfig
from astune.monitor.episodes import episode_to_row
from astune.recordings.recording import Recording
from astune.recordings.rescore import Rescored, judge_anew
from astune.support.visible import tell
from astune.types import Episode

MOST_SHOWN = 50
"""Changed verdicts that are shown; --out has all."""
REASON_LENGTH = 100


async def rescore_all(
    recordings: Iterator[Recording], config_of: Callable[[Recording], AstuneConfig], out: Path | None
) -> int:
    """Judges, prints what changed, and writes the episodes with their new verdicts. 1 if one could not be judged."""
    done: list[Rescored] = []
    with nullcontext() if out is None else new_file(out) as write:
        async for one in judge_anew(recordings, config_of):
            if write is not None:
                write(episode_to_row(replace(one.recording, episode=one.after or one.recording.episode)))
            # the part that is needed once it is written
            recording = replace(one.recording, episode=_without_turns(one.recording.episode))
            done.append(Rescored(recording, None if one.after is None else _without_turns(one.after)))
    _show_changes(done)
    if out is not None:
        tell(f"written {out}")
    return 1 if any(one.change == "could not judge" for one in done) else 0


def _without_turns(episode: Episode) -> Episode:
    return replace(episode, turns=(), timelines=())


def _show_changes(done: list[Rescored]) -> None:
    changed = [one for one in done if one.change not in ("same", "left out")]
    width = max((len(one.recording.episode.episode_id) for one in changed[:MOST_SHOWN]), default=0)
    for one in changed[:MOST_SHOWN]:
        assert one.after is not None
        old, new = _verdict(one.recording.episode), _verdict(one.after)
        tell(f"{one.recording.episode.episode_id:<{width}}  {old} -> {new}  {_reason(one.after)}".rstrip())
    if len(changed) > MOST_SHOWN:
        tell(f"... and {len(changed) - MOST_SHOWN} more")
    counts = {
        name: sum(one.change == name for one in done)
        for name in ("same", "up", "down", "newly judged", "could not judge", "left out")
    }
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name in ("same", "up", "down"))
    tell(f"{len(done)} episodes: {listed}")
    if counts["left out"]:
        tell("left out: the workflow or the model failed, so there is nothing to judge")
    before = [one.recording.episode.reward for one in done]
    after = [one.recording.episode.reward if one.after is None else one.after.reward for one in done]
    tell(f"mean reward {_mean(before)} -> {_mean(after)}")


def _mean(rewards: list[float | None]) -> str:
    known = [reward for reward in rewards if reward is not None]
    return f"{fmean(known):.4f} of {len(known)}" if known else "none"


def _verdict(episode: Episode) -> str:
    verdict = episode.verdict
    if verdict is None:
        return "none"
    said = {True: " passed", False: " failed", None: ""}[verdict.passed]
    return f"{verdict.reward:g}{said}"


def _reason(episode: Episode) -> str:
    error, verdict = episode.error, episode.verdict
    reason = verdict.reason if verdict is not None else f"{error.kind}: {error.message}" if error is not None else ""
    text = " ".join(reason.split())
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
