"""From rewards to what a learner trains on: advantages, credit, and the receipt of what was left out."""

from astune.algorithm.advantage import ADVANTAGES, AdvantageFunction
from astune.algorithm.batch_rules import BatchRules
from astune.algorithm.credit import observe
from astune.algorithm.invariants import check_episode, check_step
from astune.algorithm.receipt import NO_TEACHER, SKIPPED_UPDATE, Receipt, without_lost
from astune.algorithm.samples import Weighting, reweigh, split_samples, to_samples
from astune.algorithm.step_advantage import Advantage, StepEstimator, load_estimator

__all__ = [
    "ADVANTAGES",
    "NO_TEACHER",
    "SKIPPED_UPDATE",
    "Advantage",
    "AdvantageFunction",
    "BatchRules",
    "Receipt",
    "StepEstimator",
    "Weighting",
    "check_episode",
    "check_step",
    "load_estimator",
    "observe",
    "reweigh",
    "split_samples",
    "to_samples",
    "without_lost",
]
