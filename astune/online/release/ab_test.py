"""A test of two versions at a fixed share, until somebody ends it: `astune.rl.ABTestFramework`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from astune.config.load import load_config
from astune.errors import ConfigError, nearest
from astune.online.place import store_url
from astune.online.release.figures import ReleaseFigures, figures_of, load_release
from astune.online.store import aliases, releases, succession
from astune.store.database import open_existing

METRICS = {"user_satisfaction": "reward", "accuracy": "judged", "thumbs": "thumbs", "latency": "seconds"}
"""The article's names, and ours."""
Result = TypeVar("Result")


class ServiceStore:
    """The store of a service, whose configuration is `conf`, or the default one, with `keys` over it."""

    def __init__(self, conf: str | None, keys: Mapping[str, Any]) -> None:
        overrides = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        self.config = load_config(None if conf is None else Path(conf), overrides, for_run=False).config

    def read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """The result of `work`. Raises StoreError where there is no store."""
        with closing(open_existing(store_url(self.config))) as database:
            return database.read(work)

    def write(self, work: Callable[[sa.Connection], Result]) -> Result:
        """The same, in a transaction."""
        with closing(open_existing(store_url(self.config))) as database:
            return database.write(work)


class ABTest(ServiceStore):
    """A test of two versions on the users of a running service, whose configuration is `conf`. `model_a` is champion;
    versions are named as in `astune online versions list`. A user keeps the version that he got.

    Where `astune online release` runs as well, it may end the test before you do.
    """

    def __init__(
        self,
        model_a: str,
        model_b: str,
        traffic: Mapping[str, float],
        metrics: Collection[str],
        conf: str | None,
        keys: Mapping[str, Any],
    ) -> None:
        if sorted(traffic) != ["a", "b"] or abs(sum(traffic.values()) - 1.0) > 1e-9 or not 0.0 < traffic["b"] < 1.0:
            raise ConfigError(f"traffic: got {dict(traffic)}; expected shares of 'a' and 'b' above 0 that sum to 1")
        for metric in metrics:
            if metric not in METRICS:
                raise ConfigError(f"metrics: got {metric!r}; expected {', '.join(METRICS)}.{nearest(metric, METRICS)}")
        self._names, self._share, self._metrics = (model_a, model_b), traffic["b"], tuple(metrics)
        super().__init__(conf, keys)

    def run(self, test_duration_days: float = 7.0) -> dict[str, dict[str, float]]:
        """Begin the test, or go on with it, wait so many days, and tell the metrics of `a` and `b`. One that too little
        is known of is not a number (`math.nan`). `figures` has intervals, alarms and what guards the test."""
        self.write(self._begin)
        time.sleep(test_duration_days * 86400.0)
        found = self.figures()
        results: dict[str, dict[str, float]] = {"a": {}, "b": {}}
        decided = {metric.name: metric.found for metric in found.metrics}
        guarded = {guard.name: (guard.champion, guard.challenger) for guard in found.guardrails}
        for metric in self._metrics:
            its = decided.get(METRICS[metric])
            both = guarded.get(METRICS[metric]) if its is None else (its.champion, its.challenger)
            for arm, value in zip("ab", both or (None, None), strict=True):
                results[arm][metric] = math.nan if value is None else value
        return results

    def figures(self) -> ReleaseFigures:
        """All that is known of the test by now."""
        said = self.config.astune.online.feedback
        return self.read(lambda each: figures_of(each, load_release(each, *self._find(each)).id, said))

    def switch_traffic(self, model: Literal["a", "b"], share: float = 1.0) -> None:
        """End the test: `b` becomes champion, or gets no traffic any more."""
        if model not in ("a", "b"):
            raise ConfigError(f"model: got {model!r}; expected 'a' or 'b'")
        if share != 1.0:
            raise ConfigError(
                f"share: got {share:g}; expected 1.0. Stages of a release are astune.online.release.stages"
            )

        def switch(connection: sa.Connection) -> None:
            _, b = self._find(connection)
            state: Literal["promoted", "rolled_back"] = "promoted" if model == "b" else "rolled_back"
            why, now = f"switch_traffic({model!r})", time.time()
            releases.end_release(connection, b, state=state, reason=why, role="command", now=now)
            if model == "b":
                succession.promote(connection, aliases.resolve(connection, f"v{b}"), why=why, now=now)

        self.write(switch)

    def _begin(self, connection: sa.Connection) -> None:
        a, b = self._find(connection)
        under_way = releases.find_open(connection)
        if under_way is not None and (under_way.champion, under_way.challenger) == (a, b):
            return
        if aliases.champion(connection).number != a:
            raise ConfigError(f"model_a: v{a} is not champion; astune online versions promote v{a}")
        wanted = [METRICS[metric] for metric in self._metrics if METRICS[metric] != "seconds"] or ["reward"]
        rules = self.config.astune.online.release.model_dump(mode="json")
        rules |= {"stages": [self._share], "metric": wanted[0], "secondary": wanted[1:]}
        if "latency" in self._metrics and rules["guardrails"]["seconds"] is None:
            rules["guardrails"]["seconds"] = 0.5
        now = time.time()
        begun = releases.open_release(connection, b, rules, role="command", now=now)
        releases.advance(connection, begun, "testing", stage=0, share=self._share, why="ABTestFramework", now=now)

    def _find(self, connection: sa.Connection) -> tuple[int, int]:
        a, b = (aliases.resolve(connection, name).number for name in self._names)
        return a, b
