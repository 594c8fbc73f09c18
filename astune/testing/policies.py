"""The policy that answers from a script, under the name that tests know it by."""

from __future__ import annotations

from astune.context_tracker.scripted_policy import ScriptedPolicy, scripted_logprob, stopped_length

__all__ = ["ScriptedPolicy", "scripted_logprob", "stopped_length"]
