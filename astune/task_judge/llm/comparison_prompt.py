"""The prompt that compares answers with each other, in pairs or all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astune.task_judge.llm.fence import fenced
from astune.task_judge.llm.prompts import blocks, messages
from astune.task_judge.llm.scoring import JudgeJob

ADVICE = """\
Where there is a reference answer, it is right: an answer that disagrees with it is worse than one that agrees, however
well it is argued. The order in which the answers stand says nothing. Length, tone and confidence earn nothing unless a
criterion asks for them."""


def comparison_messages(job: JudgeJob, system: str, answers: Mapping[str, str]) -> list[dict[str, Any]]:
    """The prompt: fences `task`, `reference` if there is one, `criteria`, and `answer_<label>` for each answer."""
    criteria = job.rubric.criteria
    unequal = len({criterion.weight for criterion in criteria}) > 1
    lines = [
        f"- {' '.join(criterion.text.split())}{f' (weight {criterion.weight:g})' if unequal else ''}"
        for criterion in criteria
    ]
    shown = [fenced(f"answer_{label}", text) for label, text in answers.items()]
    parts = [*blocks(job.query, job.reference), fenced("criteria", "\n".join(lines)), *shown]
    return messages(system, job.instructions, parts)
