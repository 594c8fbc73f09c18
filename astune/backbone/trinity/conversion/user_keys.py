"""What the user's section `trinity:` may not say, because it would be trained otherwise than it was played."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astune.backbone.trinity.conversion.values import wants_tinker
from astune.config.load import LoadedConfig

BOUND: Mapping[str, str] = {
    "algorithm.repeat_times": "astune.rollout.num_repeat",
    "buffer.batch_size": "astune.trainer.tasks_per_step",
    "buffer.total_steps": "astune.trainer.total_steps",
    "continue_from_checkpoint": "astune.resume",
    "model.max_response_tokens": "astune.rollout.max_tokens",
    "model.temperature": "astune.rollout.temperature",
    "model.top_k": "astune.rollout.top_k",
    "model.top_p": "astune.rollout.top_p",
}
"""Keys of Trinity's with the key of ours that they come from, where our reader, workflow or operator acts on ours: two
different values would be without an error, and wrong."""


def refused(users: Mapping[str, Any], loaded: LoadedConfig) -> Iterator[tuple[str, str]]:
    """Keys among the user's, by dotted key, and what is wrong with them."""
    for key in users:
        if key in BOUND:
            yield key, f"ASTune's own parts go by {BOUND[key]}; set that instead"
    method = users.get("synchronizer.sync_method")
    if wants_tinker(loaded) and method not in (None, "memory") and loaded.config.astune.trainer.save_every:
        yield (
            "synchronizer.sync_method",
            f"got {method!r}, with which Trinity's explorer waits in vain for a tinker trainer at every step that is "
            "saved; expected 'memory'",
        )
