"""A release in a line, and what an operator is told of all of them."""

from __future__ import annotations

from astune.online.store.releases import Release


def line_of(release: Release) -> str:
    """Say where a release stands, and why."""
    told = f"release {release.number}: v{release.challenger} against v{release.champion}, {release.state}"
    if release.state == "testing":
        stages = len(release.settings["stages"])
        told = f"{told} at {release.share:.0%} (stage {release.stage + 1} of {stages})"
    return told if release.reason is None else f"{told}: {release.reason}"
