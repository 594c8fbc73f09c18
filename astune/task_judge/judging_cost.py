"""Sum up the cost of judging from the metrics of verdicts; judges that ask models set these."""

from __future__ import annotations

from collections.abc import Sequence

from astune.types import Verdict


def judging_cost(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Sums of `calls`, `cached` replies, `tokens` and, where all of it is known, `cost`; nothing if no model was asked.

    Parts of a judge that is made of several count too. Calls for episodes without a verdict are not known here.
    """
    calls = metric_values(verdicts, "llm_calls")
    if not calls:
        return {}
    tokens = [*metric_values(verdicts, "llm_prompt_tokens"), *metric_values(verdicts, "llm_completion_tokens")]
    sums = {"calls": sum(calls), "cached": sum(metric_values(verdicts, "llm_cached")), "tokens": sum(tokens)}
    costs = metric_values(verdicts, "llm_cost")
    return {**sums, "cost": sum(costs)} if len(costs) == len(calls) else sums


def metric_values(verdicts: Sequence[Verdict], name: str) -> list[float]:
    """A metric of all verdicts, also of the parts of a judge that is made of several."""
    return [
        float(value) for verdict in verdicts for key, value in verdict.metrics.items() if key.rpartition("/")[2] == name
    ]
