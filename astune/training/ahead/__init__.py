"""Training and rollouts side by side (`astune.synchronizer.style: async`): `rollouts` plays steps ahead, `gate` keeps
answers and new weights apart."""

from astune.training.ahead.gate import Gate
from astune.training.ahead.rollouts import RolloutsAhead, gated

__all__ = ["Gate", "RolloutsAhead", "gated"]
