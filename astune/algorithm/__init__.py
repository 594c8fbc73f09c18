"""From rewards to what a learner trains on: advantages, credit, and the receipt of what was left out."""

from astune.algorithm.advantage import ADVANTAGES, AdvantageFunction
from astune.algorithm.invariants import check_episode, check_step
from astune.algorithm.receipt import Receipt, without_skipped
from astune.algorithm.samples import Weighting, split_samples, to_samples

__all__ = [
    "ADVANTAGES",
    "AdvantageFunction",
    "Receipt",
    "Weighting",
    "check_episode",
    "check_step",
    "split_samples",
    "to_samples",
    "without_skipped",
]
