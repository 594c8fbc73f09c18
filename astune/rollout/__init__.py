"""From tasks to groups of episodes.

groups = await run_groups(tasks, 8, setup, seed=42, sampling=Sampling(max_tokens=256),
                          max_concurrent=64, label="train/1")
"""

from astune.rollout.group import run_group, run_groups
from astune.rollout.setup import RolloutSetup

__all__ = ["RolloutSetup", "run_group", "run_groups"]
