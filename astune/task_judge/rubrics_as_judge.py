"""`RubricsAsJudge`: answers scored by the criteria of a rubric file."""

from __future__ import annotations

from astune.task_judge.llm_pointwise import (
    JUDGE,
    CriteriaReply,
    CriterionScore,
    check_scores,
    criterion_line,
    rubric_messages,
    rubric_reward,
)

__all__ = [
    "JUDGE",
    "CriteriaReply",
    "CriterionScore",
    "check_scores",
    "criterion_line",
    "rubric_messages",
    "rubric_reward",
]
