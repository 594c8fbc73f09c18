"""Carry ASTune's configuration into the processes of a Trinity run, and make the parts of the run from it there.

Trinity starts a process per workflow runner on any machine of the cluster; nothing is shared but what stands in
Trinity's own configuration, so ours travels inside it (`workflow_args` and the operator's arguments).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig, Config
from astune.context_tracker.model_dir import load_chat_format, resolve_model_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.rollout.setup import RolloutSetup
from astune.training.rollout_setup import rollout_setup
from astune.types import Policy


@dataclass(eq=False)
class RunParts:
    """The configuration of the run, and what is made from it once per process, when it is first asked for."""

    config: AstuneConfig

    @cached_property
    def chat_format(self) -> ChatFormat:
        return load_chat_format(self.config.model, model_files(self.config))

    def rollout_setup(self, policy: Policy) -> RolloutSetup:
        """The user's workflow and judge around `policy`."""
        return rollout_setup(self.config, policy, self.chat_format)


def model_files(config: AstuneConfig) -> Path:
    """The folder with tokenizer and template; the weights are the engine's."""
    return resolve_model_dir(config.model.path, weights=False)


def load_parts(arguments: Mapping[str, Any]) -> RunParts:
    """The parts of the configuration in Trinity's `arguments`; the same object for the same configuration, as a runner
    asks with every group."""
    return _load(json.dumps(arguments["config"], sort_keys=True))


@lru_cache(maxsize=2)
def _load(config: str) -> RunParts:
    return RunParts(Config.model_validate_json(config).astune)
