"""Checks of a configuration for online training, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from astune.backbone.trinity.conversion.online import convert_online
from astune.config.load import LoadedConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.online.place import online_folder

BACKBONES = ("local", "trinity")
"""The backbones that can train versions."""


def check_online(loaded: LoadedConfig) -> None:
    """Raises ConfigError that names every key which online training has no use for, or cannot honour."""
    found = [f"{loaded.where(key)}: {said}" for key, said in _wrong(loaded.config.astune)]
    if loaded.stages:
        found.append(f"{loaded.where('astune.stages')}: online training has no stages; take the key out")
    if loaded.config.astune.models:
        found.append(f"{loaded.where('astune.models')}: online training has one model; take the key out")
    if loaded.config.astune.backbone == "trinity":
        try:
            convert_online(loaded, online_folder(loaded.config))
        except ConfigError as error:
            found.append(str(error))
    if found:
        raise ConfigError("\n".join(found))


def _wrong(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    algorithm, trainer = astune.algorithm, astune.trainer
    if astune.backbone not in BACKBONES:
        yield "astune.backbone", f"got {astune.backbone!r}, which trains no versions; expected 'local' or 'trinity'"
    if not rules_of(algorithm).is_trained_by("online"):
        yield (
            "astune.algorithm.method",
            f"got {algorithm.method!r}; online training learns from rewards, thumbs, comparisons and corrections, as "
            "astune.online.commit weighs them; expected 'rl'",
        )
    if algorithm.dynamic_sampling:
        yield "astune.algorithm.dynamic_sampling", "users ask what they like: there are no further tasks; expected 0"
    for key in algorithm.find_changed(["trained_agents", "agent_reward"]):
        yield f"astune.algorithm.{key}", "what is served is one agent; take the key out"
    if trainer.lr_schedule != "constant":
        yield (
            "astune.trainer.lr_schedule",
            f"got {trainer.lr_schedule!r}, which ends with the run; online training has no end; expected 'constant'",
        )
    rules, every = astune.online.commit, astune.online.serve.every_commits
    if every > 1 and rules.base != "champion":
        yield (
            "astune.online.serve.every_commits",
            f"got {every}, but each version is made from astune.online.commit.base, {rules.base!r}: none is so many "
            "commits after another; expected 1, or the base 'champion'",
        )
    if astune.online.release.strategy == "staged" and rules.base != "champion":
        yield (
            "astune.online.release.strategy",
            f"got 'staged', which tests what was made from champion, but astune.online.commit.base is {rules.base!r}; "
            "expected 'at_once', or the base 'champion'",
        )
    if rules.min_episodes > rules.max_episodes:
        yield (
            "astune.online.commit.min_episodes",
            f"got {rules.min_episodes}, but a commit has at most max_episodes, {rules.max_episodes}",
        )
