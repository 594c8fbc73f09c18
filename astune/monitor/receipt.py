"""The receipt of a run, which accounts for every sampled token: those of its steps (`astune.algorithm.receipt`) added
up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Metrics = Sequence[Mapping[str, Any]]

COUNTS = {
    "turns": "turns/total",
    "truncated": "turns/truncated",
    "lost_calls": "calls/lost",
    "unread_calls": "calls/unread",
    "unread_cut": "calls/unread_cut",
    "timelines": "timelines/total",
    "sampled": "tokens/sampled",
    "trained": "tokens/trained",
    "inexact": "tokens/trained_inexact",
    "flattened": "tokens/flattened",
    "unique": "tokens/unique",
}
"""Entries of the sum and the metrics that they add up."""


def sum_of_receipts(metrics: Metrics) -> dict[str, Any]:
    """`COUNTS` over all steps; `dropped` tokens by reason and `forks` by cause, most first; `age`: mean over trained
    tokens and greatest; `late`: see `_late`; `weight_sums`: the least and the greatest of the steps that trained,
    None if none did."""
    trained = [row for row in metrics if row.get("tokens/trained")]
    tokens = sum(row["tokens/trained"] for row in trained)
    dated = [row for row in trained if row.get("policy_age/mean") is not None]
    ages = [(row["policy_age/mean"], row["policy_age/max"], row["tokens/trained"]) for row in dated]
    sums = [row["weight_sum"] for row in trained if row.get("weight_sum") is not None]
    return {
        **{name: int(_total(metrics, key)) for name, key in COUNTS.items()},
        "dropped": _by_name(metrics, "tokens/dropped_"),
        "forks": _by_name(metrics, "forks/"),
        "age": (sum(mean * count for mean, _, count in ages) / tokens, max(age for _, age, _ in ages))
        if ages
        else None,
        "late": _late(metrics),
        "weight_sums": (min(sums), max(sums)) if sums else None,
        "steps_trained": len(trained),
    }


def _late(metrics: Metrics) -> dict[str, float]:
    """Episodes that were cut off as they came late, of how many, and means over them and over the others of their
    steps; empty if there were none."""
    rows = [row for row in metrics if row.get("stop/late")]
    counts = {kind: [_of_kind(row, kind) for row in rows] for kind in ("late", "in_time")}
    figures = {
        f"{kind}/{name}": math.fsum(
            row[f"{kind}/{name}"] * count for row, count in zip(rows, numbers, strict=True) if count
        )
        / sum(numbers)
        for kind, numbers in counts.items()
        for name in ("seconds", "tokens")
        if sum(numbers)
    }
    return {"late": sum(counts["late"]), "total": _total(metrics, "episodes/total"), **figures} if rows else {}


def _of_kind(row: Mapping[str, Any], kind: str) -> float:
    late: float = row["stop/late"]
    return late if kind == "late" else row["episodes/total"] - late


def _total(metrics: Metrics, key: str) -> float:
    return math.fsum(row[key] for row in metrics if row.get(key) is not None)


def _by_name(metrics: Metrics, prefix: str) -> dict[str, int]:
    names = {key.removeprefix(prefix) for row in metrics for key in row if key.startswith(prefix)}
    counts = {name: int(_total(metrics, prefix + name)) for name in sorted(names)}
    return dict(sorted(((name, count) for name, count in counts.items() if count), key=lambda item: -item[1]))


def receipt_lines(receipt: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The result of `sum_of_receipts` as a table of two columns for people; empty if nothing was sampled."""
    if not receipt["turns"]:
        return []
    lines = [("model calls", _calls(receipt)), ("tokens", _tokens(receipt))]
    if receipt["forks"]:
        lines.append(("forks", _counts(receipt["forks"])))
    if receipt["unique"]:
        ratio = receipt["flattened"] / receipt["unique"]
        lines.append(("rows", f"{receipt['flattened']:,} tokens, {ratio:.2f} times the {receipt['unique']:,} distinct"))
    if receipt["age"] is not None:
        mean, most = receipt["age"]
        by_others = f"{mean:.2f} updates between sampling and training, at most {most:g}"
        lines.append(("policy age", by_others if most else "0: all trained on the policy that sampled them"))
    if receipt["late"]:
        lines.append(("late episodes", _cut_off(receipt["late"])))
    if receipt["weight_sums"] is not None:
        lines.append(("loss weights", _weights(receipt)))
    return lines


def _calls(receipt: Mapping[str, Any]) -> str:
    parts = [f"{receipt['turns']:,} in {receipt['timelines']:,} training rows"]
    if receipt["truncated"]:
        parts.append(f"{receipt['truncated']:,} cut off by a token limit")
    if receipt["lost_calls"]:
        parts.append(f"{receipt['lost_calls']:,} more without an answer")
    if receipt["unread_calls"]:
        cut = f" ({receipt['unread_cut']:,} of them cut off)" if receipt["unread_cut"] else ""
        parts.append(f"{receipt['unread_calls']:,} answers with call marks and no call{cut}")
    return ", ".join(parts)


def _tokens(receipt: Mapping[str, Any]) -> str:
    text = f"{receipt['sampled']:,} sampled, {receipt['trained']:,} trained"
    if receipt["inexact"]:
        text += f" ({receipt['inexact']:,} of them inexact)"
    return f"{text}, left out: {_counts(receipt['dropped'])}" if receipt["dropped"] else text


def _cut_off(late: Mapping[str, float]) -> str:
    """Compare the episodes that were cut off with the others: they are the kind that training misses."""
    kinds = (("late", ""), ("in_time", "the others "))
    means = [
        f"{whose}{late[f'{kind}/seconds']:.1f} s and {late[f'{kind}/tokens']:.0f} tokens"
        for kind, whose in kinds
        if f"{kind}/seconds" in late
    ]
    return f"{late['late']:,.0f} of {late['total']:,.0f} cut off, after {', '.join(means)} on average"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _weights(receipt: Mapping[str, Any]) -> str:
    low, high = receipt["weight_sums"]
    if max(abs(low - 1), abs(high - 1)) < 1e-9:
        return f"sum to 1 in each of the {receipt['steps_trained']:,} steps that trained"
    figures = f"{low:.3g}" if low == high else f"between {low:.3g} and {high:.3g}"
    return f"sum to {figures} (astune.algorithm.loss_aggregation=constant)"
