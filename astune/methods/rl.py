"""`rl`: rewards of episodes, compared with each other."""

from __future__ import annotations

from astune.algorithm.method import Method
from astune.config.schema import AlgorithmConfig

OF_OTHERS = {
    "dpo_beta",
    "keep_per_task",
    "kto_bad_weight",
    "kto_good_weight",
    "preference_loss",
    "preference_margin",
    "teacher",
}


class Rl(Method):
    """Learns from every attempt by its advantage (`astune.algorithm.advantage`): better than the others of its group,
    of its step, or than a critic expected. The loss is `astune.algorithm.loss`."""

    plays = True
    loss = "policy"
    keys = frozenset(AlgorithmConfig.model_fields.keys() - OF_OTHERS)
    trained_by = ("local", "verl", "trinity", "debug", "online")
