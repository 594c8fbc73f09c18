"""How much feedback there is, for Prometheus."""

from __future__ import annotations

import sqlalchemy as sa

from astune.store.feedback.figures import feedback_figures


def feedback_metrics(connection: sa.Connection) -> str:
    """Prometheus' text: how much feedback of each kind is in each state, and how often the same came again.

    They are read from the store, so they are the same whichever process is asked, and after a restart.
    """
    figures = feedback_figures(connection)
    lines = [
        "# HELP astune_feedback Things said of answers, by what was said and what became of it.",
        "# TYPE astune_feedback gauge",
        *(f'astune_feedback{{kind="{kind}",state="{state}"}} {n}' for (kind, state), n in figures.by_kind.items()),
        "# HELP astune_feedback_again_total Feedback that was there already when it came.",
        "# TYPE astune_feedback_again_total counter",
        f"astune_feedback_again_total {figures.again}",
        "# HELP astune_judge_failures_total Times a judge could not tell what an answer was worth.",
        "# TYPE astune_judge_failures_total counter",
        f"astune_judge_failures_total {figures.judge_failures}",
    ]
    return "\n".join(lines) + "\n"
