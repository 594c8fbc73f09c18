"""From rewards to what a learner trains on: advantages, credit, and the receipt of what was left out."""

from astune.algorithm.advantage import ADVANTAGES, AdvantageFunction
from astune.algorithm.samples import Receipt, to_samples

__all__ = ["ADVANTAGES", "AdvantageFunction", "Receipt", "to_samples"]
