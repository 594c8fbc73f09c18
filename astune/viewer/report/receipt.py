"""The receipt of a run for the page: a bar of all sampled tokens, and tables of what was left out and of forks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astune.monitor.receipt import Metrics, receipt_lines, sum_of_receipts
from astune.monitor.words import FORKS, LEFT_OUT


@dataclass(frozen=True)
class NamedCount:
    """A named count, its part of the whole in percent, and what it means."""

    name: str
    count: int
    percent: float
    meaning: str


@dataclass(frozen=True)
class ReceiptView:
    """`lines` name and value; `tokens` begins with those that were trained; `forks` are shares of all rows."""

    lines: list[tuple[str, str]]
    tokens: list[NamedCount]
    forks: list[NamedCount]


def receipt_view(metrics: Metrics) -> ReceiptView | None:
    """None for a run that has not sampled anything."""
    receipt = sum_of_receipts(metrics)
    if not receipt["sampled"]:
        return None
    tokens = {"trained": receipt["trained"], **receipt["dropped"]}
    lines = [line for line in receipt_lines(receipt) if line[0] not in ("tokens", "forks")]
    return ReceiptView(
        lines,
        _count_rows(tokens, receipt["sampled"], {"trained": "They carry loss.", **LEFT_OUT}),
        _count_rows(receipt["forks"], receipt["timelines"], FORKS),
    )


def _count_rows(counts: Mapping[str, int], whole: int, words: Mapping[str, str]) -> list[NamedCount]:
    return [NamedCount(name, count, 100 * count / max(1, whole), words.get(name, "")) for name, count in counts.items()]
