"""The border between the training loop and what computes for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.types import Learner, Policy


@dataclass(frozen=True)
class Engine:
    """A model that can be sampled from and trained, wherever that happens: all that the loop knows of a backbone.

    `policy` samples from the weights that `learner` published last.
    """

    policy: Policy
    learner: Learner
    chat_format: ChatFormat


LoadEngine: TypeAlias = Callable[[AstuneConfig], Engine]
