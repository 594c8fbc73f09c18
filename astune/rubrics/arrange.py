"""Arrange the chosen criteria by theme, and say for those on a scale what earns each score (anchors)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from astune.errors import nearest
from astune.rubrics.judge_examples import Asking
from astune.rubrics.prompts import Arrangement, arrange_messages
from astune.task_judge.llm.rubric import Criterion


async def arranged(
    asking: Asking, criteria: Sequence[Criterion], scale: str
) -> tuple[list[Criterion], list[Criterion]]:
    """The criteria by theme, without and with anchors. Those that a person edited keep theme and anchors. Where the
    reply cannot be used they stay as they are."""
    known = {criterion.id: criterion for criterion in criteria}

    def check(reply: Arrangement) -> None:
        check_arrangement(known, reply)

    messages = arrange_messages({name: one.text for name, one in known.items()}, scale)
    (reply,) = await asking.stage("arrange", [asking.ask(messages, Arrangement, check)])
    if reply is None:
        return list(criteria), list(criteria)
    themed = [
        known[name] if known[name].edited else known[name].model_copy(update={"theme": theme.theme.strip()})
        for theme in reply.themes
        for name in theme.criteria
    ]
    anchored = [
        one
        if one.edited or one.scale == "binary"
        else one.model_copy(update={"anchors": reply.anchors.get(one.id, {})})
        for one in themed
    ]
    return themed, anchored


def check_arrangement(known: dict[str, Criterion], reply: Arrangement) -> None:
    """Raises ValueError unless each criterion stands under exactly one theme and anchors are on its scale."""
    times = Counter(name for theme in reply.themes for name in theme.criteria)
    problems = [f"no criterion {name!r}.{nearest(name, known)}".rstrip(".") for name in times if name not in known]
    problems += [f"criterion {name!r} stands under no theme" for name in known if name not in times]
    problems += [f"criterion {name!r} stands {count} times" for name, count in times.items() if count > 1]
    for name, anchors in reply.anchors.items():
        if name not in known:
            problems.append(f"anchors of {name!r}, which is no criterion")
        elif any(not known[name].min <= score <= known[name].max for score in anchors):
            problems.append(f"anchors of {name!r}: scores from {known[name].min} to {known[name].max}")
    if problems:
        raise ValueError("; ".join(problems))
