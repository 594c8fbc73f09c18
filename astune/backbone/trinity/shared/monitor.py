"""Send the figures that Trinity's explorer and trainer log to the driver, which keeps them with everything else."""

from __future__ import annotations

from typing import Any

from trinity.common.config import Config
from trinity.utils.monitor import Monitor

from astune.backbone.trinity.shared.events import Logged
from astune.backbone.trinity.shared.mailbox import find_mailbox


class AstuneMonitor(Monitor):  # type: ignore[misc]
    def __init__(self, project: str, group: str, name: str, role: str, config: Config | None = None) -> None:
        super().__init__(project, name, role, config)
        self._mailbox = find_mailbox()

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        values = {name: float(value) for name, value in data.items()}
        self._mailbox.put.remote(Logged(self.role, step, values))

    def close(self) -> None:
        """Nothing is held here."""
