"""The provenance and the report of a rubric, which its file holds beside the criteria."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import Any

from astune.rubrics.edits import criterion_digest
from astune.rubrics.examples import Examples
from astune.rubrics.judge_examples import Asking
from astune.rubrics.learn import Learned
from astune.rubrics.measure import Accuracy
from astune.rubrics.prompts import PROMPTS_VERSION
from astune.rubrics.split import Split
from astune.task_judge.llm.rubric import Rubric

WIDE = 0.2
NO_BETTER = (
    "On the test examples the rubric is no better than the baselines: the labels may not follow from the answers, or "
    "the examples are too few."
)


def with_report(name: str, learned: Learned, examples: Examples, split: Split, asking: Asking, seed: int) -> Rubric:
    """The rubric as it is written. Nothing in it depends on how often the run was cut off."""
    rubric = learned.in_use.rubric
    return rubric.model_copy(
        update={
            "name": name,
            "provenance": _provenance(rubric, learned, examples, split, asking, seed),
            "report": _report(learned),
        }
    )


def set_date(rubric: Rubric, created: date) -> Rubric:
    return rubric.model_copy(update={"provenance": {"created": created.isoformat(), **rubric.provenance}})


def _provenance(
    rubric: Rubric, learned: Learned, examples: Examples, split: Split, asking: Asking, seed: int
) -> dict[str, Any]:
    paid = asking.total
    return {
        "examples": {"file": examples.path.name, "sha256": examples.sha256, "kind": examples.kind},
        "split": {"train": len(split.train), "dev": len(split.dev), "test": len(split.test), "digest": split.digest},
        "seed": seed,
        "models": list(asking.models.names),
        "prompts": PROMPTS_VERSION,
        "rounds": learned.rounds,
        "replies": len(asking.paid),
        "prompt_tokens": paid.prompt_tokens,
        "completion_tokens": paid.completion_tokens,
        "cost": None if paid.cost is None else round(paid.cost, 6),
        "pass_at": learned.in_use.pass_at,
        "digest": rubric.digest,
        "criteria": {criterion.id: criterion_digest(criterion) for criterion in rubric.criteria},
    }


def _report(learned: Learned) -> dict[str, Any]:
    test = learned.test
    report: dict[str, Any] = {
        "test": test.as_dict(),
        "baselines": {
            "majority": learned.majority.as_dict(),
            "without_rubric": learned.without_rubric.as_dict(),
            "one_round": None if learned.one_round is None else learned.one_round.as_dict(),
        },
        "dev": learned.in_use.dev.as_dict(),
        "helps": {name: round(gain, 4) for name, gain in learned.helps.items()},
    }
    notes = [] if better_than_baselines(report) else [NO_BETTER]
    notes += [how_sure(test)] if test.high - test.low > WIDE else []
    if notes:
        report["note"] = " ".join(notes)
    return report


def better_than_baselines(report: Mapping[str, Any]) -> bool:
    """True if the rubric did better on the test examples than the most frequent label, by at least one standard error
    of so few examples, since shuffled labels come out a little above it by luck; and no worse than the same model
    without a rubric."""
    accuracy, n = report["test"]["accuracy"], report["test"]["n"]
    majority, without = (report["baselines"][name]["accuracy"] for name in ("majority", "without_rubric"))
    luck = math.sqrt(majority * (1 - majority) / n)
    return bool(accuracy > majority and accuracy >= majority + luck and accuracy >= without)


def how_sure(test: Accuracy) -> str:
    examples = "1 test example says" if test.n == 1 else f"{test.n} test examples say"
    return (
        f"{examples} little: the accuracy may as well be {test.low:.0%} or {test.high:.0%}. "
        "More examples make it surer."
    )
