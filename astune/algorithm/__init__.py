"""From rewards to what a learner trains on: advantages, credit, and the receipt of what was left out."""

from astune.algorithm.advantage import ADVANTAGES, AdvantageFunction
from astune.algorithm.samples import Receipt, split_samples, to_samples

__all__ = ["ADVANTAGES", "AdvantageFunction", "Receipt", "split_samples", "to_samples"]
