"""The registry of a service from Python: `astune.rl.ModelManager`; `astune.rl.HotUpdater` uses it too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from astune.online.place import online_folder, versions_folder
from astune.online.release.ab_test import ABTest, ServiceStore
from astune.online.store import aliases, registry, succession
from astune.online.store.versions import ModelVersion, load_tree
from astune.online.training.checkpoint import check_version

WHY = "astune.rl"


class VersionManager(ServiceStore):
    """The versions of a service. Its configuration is `conf`, or the default one, with `keys` over it, as
    `astune.online.folder`. Raises StoreError where there is no store yet."""

    def __init__(self, conf: str | None, keys: Mapping[str, Any]) -> None:
        super().__init__(conf, keys)
        self._conf, self._keys = conf, dict(keys)

    def create_version(self, name: str) -> str:
        """Call champion so, and return it as v7. Where it has a name, this one is an alias of it: the name stays."""

        def call(connection: sa.Connection) -> int:
            version, now = aliases.champion(connection), time.time()
            if version.name is None:
                registry.give_name(connection, version, name, now=now)
            else:
                said: dict[str, Any] = {"expected": None, "role": "command", "why": WHY, "now": now}
                aliases.move(connection, name, to=version.number, **said)
            return version.number

        return f"v{self.write(call)}"

    def rollback(self, version: str) -> str:
        """Let a version answer again, and return it as v7. All that was made from it since, on the way to champion, is
        held. Raises RunFolderError where its files are gone or changed."""

        def go(connection: sa.Connection) -> int:
            target = self._find(connection, version)
            path = load_tree(connection).path(aliases.champion(connection).number)
            if target.number not in path:
                succession.promote(connection, target, why=WHY, now=time.time())
            elif target.number != path[0]:
                child = aliases.resolve(connection, f"v{path[path.index(target.number) - 1]}")
                said: dict[str, Any] = {"forget": False, "why": WHY, "now": time.time()}
                succession.roll_back(connection, child, target, role="command", **said)
            return target.number

        return f"v{self.write(go)}"

    def create_ab_test(self, version_a: str, version_b: str, traffic_ratio: Mapping[str, float]) -> ABTest:
        """A test of two versions on the users of the service: see `astune.rl.ABTestFramework`."""
        return ABTest(version_a, version_b, traffic_ratio, ("user_satisfaction",), self._conf, self._keys)

    def find_waiting(self) -> list[ModelVersion]:
        """Find the versions that commits made from champion and that do not answer yet, the newest first."""
        return self.read(succession.waiting)

    def promote(self, number: int) -> None:
        """Let a version answer."""
        self.write(lambda each: succession.promote(each, self._find(each, f"v{number}"), why=WHY, now=time.time()))

    def refuse(self, number: int) -> None:
        """Go back from a version, and from all that was made from it."""

        def go(connection: sa.Connection) -> None:
            version = aliases.resolve(connection, f"v{number}")
            target = succession.find_target(connection, version, None)
            said: dict[str, Any] = {"forget": False, "why": WHY, "now": time.time()}
            succession.roll_back(connection, version, target, role="command", **said)

        self.write(go)

    def model_of(self, version: ModelVersion) -> str:
        """The folder of its model."""
        if version.folder is None:
            return self.config.astune.model.path
        return str(versions_folder(online_folder(self.config)) / version.folder)

    def _find(self, connection: sa.Connection, name: str) -> ModelVersion:
        version = aliases.resolve(connection, name)
        check_version(versions_folder(online_folder(self.config)), version)
        return version
