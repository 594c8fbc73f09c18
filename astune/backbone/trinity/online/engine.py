"""Trinity as the engine of online training."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from astune.backbone.local.engine import load_policy
from astune.backbone.trinity.conversion.user_keys import check_trinity_keys
from astune.backbone.trinity.versions import require_trinity
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.training.engine import Engine

if TYPE_CHECKING:
    from astune.backbone.trinity.online.session import Beginning, TrinitySession


class TrinityEngines:
    """Makes the engine of the service in `folder`, anew whenever it is asked to; the one before is then of no use.

        with TrinityEngines(loaded, folder) as engines:
            trainer = Trainer(loaded.config, engines.load_engine, database, folder)

    Trinity is started by the first update and ends with the block. Raises MissingDependency and ConfigError for what
    is missing or unknown to Trinity.
    """

    def __init__(self, loaded: LoadedConfig, folder: Path) -> None:
        # Trinity's loggers of this process take their level when they are imported; actors write logs as usual
        os.environ.setdefault("TRINITY_LOG_LEVEL", "CRITICAL")
        require_trinity(tinker=True)
        from trinity.common.config import Config as TrinityConfig

        check_trinity_keys(loaded, TrinityConfig)
        self._loaded, self._folder = loaded, folder
        self._session: TrinitySession | None = None

    def load_engine(self, config: AstuneConfig) -> Engine:
        from astune.backbone.trinity.online.learner import TrinityLearner

        model, sampler, chat_format = load_policy(config)
        return Engine(sampler, TrinityLearner(model, sampler, config, self._begin), chat_format)

    def _begin(self, beginning: Beginning | None, share: float) -> TrinitySession:
        from astune.backbone.trinity.online.session import TrinitySession

        self.close()
        self._session = TrinitySession(self._loaded, self._folder, beginning, share)
        return self._session

    def close(self) -> None:
        """End Trinity, if it runs."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> TrinityEngines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
