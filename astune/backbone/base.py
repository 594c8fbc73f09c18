"""The border between the launcher and a backbone, and the check that no setting of the user is silently ignored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

from astune.config.load import LoadedConfig
from astune.errors import ConfigError
from astune.types import RunReport

BACKBONES = {
    "debug": "astune.backbone.debug:DebugBackbone",
    "local": "astune.backbone.local.engine:LocalBackbone",
    "trinity": "astune.backbone.trinity.backbone:TrinityBackbone",
    "verl": "astune.backbone.verl.backbone:VerlBackbone",
}
"""The places of those that ship, by name."""
UPDATE_SECTIONS = frozenset(
    {
        "astune.algorithm.clip_dual",
        "astune.algorithm.clip_high",
        "astune.algorithm.clip_low",
        "astune.algorithm.entropy_bonus",
        "astune.algorithm.importance",
        "astune.algorithm.importance_cap",
        "astune.algorithm.importance_weight_cap_ratio",
        "astune.algorithm.kl_beta",
        "astune.algorithm.kl_estimator",
        "astune.algorithm.kl_in",
        "astune.algorithm.loss",
        "astune.algorithm.opmd_tau",
        "astune.algorithm.out_of_date_decay",
        "astune.algorithm.strict_in_bound",
        "astune.trainer",
    }
)
"""Sections that the debugger has no use for, unless `astune.debug.with_update` shows an optimizer step."""


class Backbone(Protocol):
    """Runs a whole job. Sections are dotted prefixes such as `astune.rollout`, or single keys such as `astune.seed`.

    `honours` is what the backbone acts on, less `ignored_sections`: what it accepts but has no use for, because the
    same file also serves another backbone (the debugger takes a training file as it is). A key that the user set and
    that stands under neither is an error.

    `run` returns with status "interrupted" after Ctrl-C, with everything saved that it can save; `TrainingError`
    says that the run cannot go on. `problems` and `require_packages` are asked before it, and by the doctor.
    """

    name: ClassVar[str]
    honours: ClassVar[frozenset[str]]
    ignored_sections: ClassVar[frozenset[str]]

    def problems(self, loaded: LoadedConfig) -> Iterator[str]:
        """Give each reason why `run` would refuse the configuration, as `place: key: what is wrong`, as far as it is
        known without starting or loading anything. Here: none but those that `load_config` has found."""
        return iter(())

    def require_packages(self, loaded: LoadedConfig) -> None:
        """Raise `MissingDependency` for what the backbone imports and this Python lacks. Here: nothing is looked up."""
        return None

    @abstractmethod
    def run(self, loaded: LoadedConfig) -> RunReport: ...


def covers(sections: Iterable[str], key: str) -> bool:
    """True if `key` is one of `sections` or stands under one.

    >>> covers({"astune.model"}, "astune.model.path"), covers({"astune.model"}, "astune.model_path")
    (True, False)
    """
    return any(key == section or key.startswith(section + ".") for section in sections)


def refuse_problems(backbone: Backbone, loaded: LoadedConfig) -> None:
    """Raise `ConfigError` with all that `backbone` would refuse."""
    if problems := list(backbone.problems(loaded)):
        raise ConfigError("\n".join(problems))


def check_keys(backbone: Backbone, loaded: LoadedConfig) -> list[str]:
    """Find the sections that the user set and `backbone` has no use for, to be shown before the run.

    Raises `ConfigError` for keys set by the user, away from their defaults, that `backbone` does not know at all.
    """
    ignored: set[str] = set()
    unknown = []
    for key in loaded.set_by_user():
        sections = {section for section in backbone.ignored_sections if covers([section], key)}
        ignored |= sections
        if (
            not sections
            and not covers(backbone.honours | {"astune.backbone"}, key)
            and loaded.differs_from_default(key)
        ):
            unknown.append(f"{loaded.where(key)}: backbone {backbone.name!r} does not support it")
    if unknown:
        raise ConfigError("\n".join(unknown))
    return sorted(ignored - UPDATE_SECTIONS if loaded.config.astune.debug.with_update else ignored)
