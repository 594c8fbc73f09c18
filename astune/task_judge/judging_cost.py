"""What judging cost: the sums of the metrics that judges which ask models give their verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from astune.types import Verdict


def judging_cost(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Sums of `calls`, `cached` replies, `tokens` and, where all of it is known, `cost`; nothing if no model was asked.

    Parts of a judge that is made of several count too. Calls for episodes without a verdict are not known here.
    """
    calls = _all(verdicts, "llm_calls")
    if not calls:
        return {}
    sums = {"calls": sum(calls), "cached": sum(_all(verdicts, "llm_cached"))}
    sums["tokens"] = sum(_all(verdicts, "llm_prompt_tokens")) + sum(_all(verdicts, "llm_completion_tokens"))
    costs = _all(verdicts, "llm_cost")
    return {**sums, "cost": sum(costs)} if len(costs) == len(calls) else sums


def _all(verdicts: Sequence[Verdict], name: str) -> list[float]:
    """The metric of all verdicts and of their parts."""
    return [
        float(value) for verdict in verdicts for key, value in verdict.metrics.items() if key.rpartition("/")[2] == name
    ]
