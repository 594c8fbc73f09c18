"""The older place of the judge: configurations name `astune.task_judge.math_answer_as_judge->MathAnswerAsJudge`."""

from __future__ import annotations

from astune.task_judge.math.judge import MathAnswerAsJudge

__all__ = ["MathAnswerAsJudge"]
