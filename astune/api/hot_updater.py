"""A look at a new version before it answers: `astune.rl.HotUpdater`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astune.api.evaluate import evaluate
from astune.errors import ConfigError, nearest

if TYPE_CHECKING:
    from astune.online.store.versions import ModelVersion

SETTINGS: Mapping[str, Any] = {"strategy": "rolling", "canary_ratio": 1.0, "check_after_updates": 1}


class HotUpdater:
    """Tests a new version before it answers. The service must not take each by itself
    (`astune.online.serve.every_commits`).

    Of `update_config`, `check_after_updates` is how many versions make it look, and `canary_ratio` which share of the
    test cases meets the new one. `keys` and `conf` are those of the service, and of `astune.evaluate`.
    """

    def __init__(
        self,
        agent: object,
        update_config: Mapping[str, Any],
        judge: object = None,
        conf: str | None = None,
        **keys: Any,
    ) -> None:
        for name in update_config:
            if name not in SETTINGS:
                raise ConfigError(f"update_config: {name!r} means nothing here.{nearest(name, SETTINGS)}")
        given = {**SETTINGS, **update_config}
        if given["strategy"] != "rolling" or not 0.0 < given["canary_ratio"] <= 1.0:
            raise ConfigError(
                f"update_config: got {given}; expected the strategy 'rolling' and a canary_ratio above 0, up to 1. A "
                "version that live users meet by and by: ABTestFramework"
            )
        from astune.online.release.manager import VersionManager

        self._ratio, self._many = float(given["canary_ratio"]), int(given["check_after_updates"])
        self._agent, self._judge, self._conf, self._keys = agent, judge, conf, keys
        self._versions = VersionManager(conf, keys)

    def has_new_model(self) -> bool:
        """Tell whether enough versions wait."""
        return len(self._versions.find_waiting()) >= self._many

    def test_canary(self, test_cases: Sequence[object]) -> dict[str, float]:
        """The `success_rate` of the newest version on test cases, by `astune.evaluate`."""
        cases = list(test_cases[: max(1, round(self._ratio * len(test_cases)))])
        model = self._versions.model_of(self._newest())
        found = evaluate(self._agent, cases, self._judge, models=[model], conf=self._conf, **self._keys)
        return {"success_rate": found.models[0].all["greedy"]["success"].mean}

    def rollout_update(self) -> None:
        """Let the newest version answer."""
        self._versions.promote(self._newest().number)

    def rollback(self) -> None:
        """Go back from what waits: only a command lets it answer."""
        for version in self._versions.find_waiting()[-1:]:
            self._versions.refuse(version.number)

    def _newest(self) -> ModelVersion:
        waiting = self._versions.find_waiting()
        if not waiting:
            raise ConfigError("HotUpdater: no version waits; ask has_new_model() first")
        return waiting[0]
