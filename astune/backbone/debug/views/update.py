"""Show what one update does to every turn and every token of a group."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from astune.backbone.debug.views.tables import describe_turn_reward, has_own_rewards
from astune.support.statistics import without_noise
from astune.support.terminal import Console, Text, make_table
from astune.support.visible import visible
from astune.types import Group, Sample

if TYPE_CHECKING:  # it needs torch, and showing does not
    from astune.backbone.local.inspect import SpanUpdate, UpdateInspection

MOST_CHANGED = 8
"""Tokens of an attempt that are listed when the screen has no colours."""
SMALL, LARGE = 0.05, 0.5
"""Parts of the largest change in the group: below the first a token is dim, above the second bold."""
MOST_CHANGE = 700.0
"""Largest change of a logprob that counts: the exponential of more is no number."""

Pieces = Callable[[Sequence[int]], "list[str]"]
"""The text of each of some tokens."""


@dataclass
class _TurnUpdate:
    """A turn of an attempt with its tokens' ids, and what the update does to them: the same on all branches it lies
    on. `credits` are advantage, weight and loss on each branch."""

    agent: str
    token_ids: Sequence[int]
    update: SpanUpdate
    credits: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def moved(self) -> float:
        """The change of the whole turn's logprob."""
        return math.fsum(self.update.changes)


_Attempt = Mapping[int, _TurnUpdate]
"""The trained turns of an attempt by their numbers."""


def show_update(
    console: Console, inspection: UpdateInspection, samples: Sequence[Sample], group: Group, pieces: Pieces
) -> None:
    """Print what one update with `samples`, made of `group`, does. On a terminal the trained tokens stand as text,
    coloured by the change of their logprobs; elsewhere the most changed ones in a table. Nothing that an agent wrote
    is read as markup or as a terminal's command."""
    console.print()
    console.print(Text.assemble(("update", "bold cyan"), "  ", ("one training step of these attempts alone", "dim")))
    if not samples:
        _print_indented(console, Text(f"training would skip this group: {_explain_no_signal(group)}", style="yellow"))
        return
    attempts = _collect_attempts(inspection, samples, group)
    _print_indented(console, _make_turn_table(attempts, group))
    console.print()
    _print_indented(console, Text(_describe_figures(inspection, samples), overflow="fold"))
    if inspection.skipped:
        text = "the gradient is not finite: training would throw this update away, no weight changes"
        _print_indented(console, Text(text, style="bold red"))
        return
    _print_indented(console, Text(_describe_gains(attempts, group), style="bold"))
    _print_tokens(console, attempts, pieces)


def _print_indented(console: Console, what: RenderableType) -> None:
    console.print(Padding(what, (0, 0, 0, 2), expand=False))


def _collect_attempts(inspection: UpdateInspection, samples: Sequence[Sample], group: Group) -> dict[int, _Attempt]:
    """The turns that carry weight, by the number of the attempt."""
    numbers = {episode.episode_id: number for number, episode in enumerate(group.episodes)}
    attempts: dict[int, dict[int, _TurnUpdate]] = defaultdict(dict)
    for sample, updates in zip(samples, inspection.samples, strict=True):
        turns = attempts[numbers[sample.episode_id]]
        line = sample.timeline
        for span, update, *credit in zip(line.spans, updates, sample.advantages, sample.weights, strict=True):
            if update is not None:
                fresh = _TurnUpdate(line.agent, line.token_ids[span.start : span.stop], update)
                turns.setdefault(span.turn, fresh).credits.append((credit[0], credit[1], update.loss))
    return {number: dict(sorted(attempts[number].items())) for number in sorted(attempts)}


def _make_turn_table(attempts: Mapping[int, _Attempt], group: Group) -> Table:
    """A line per turn; weight (of one token) and loss are sums over the training rows it counts on."""
    with_rewards = has_own_rewards(group)
    several = any(len(turn.credits) > 1 for turns in attempts.values() for turn in turns.values())
    first = ("attempt", "turn", *(["rows"] if several else []), "agent", "tokens")
    figures = (*(["reward"] if with_rewards else []), "advantage", "weight", "loss")
    table = make_table(*first, *figures, "logprob", "change", "prob", "change", left=("agent",), gap=2)
    for attempt, turns in attempts.items():
        for number, turn in turns.items():
            advantages, weights, losses = zip(*turn.credits, strict=True)
            before, after = turn.update.before, turn.update.after
            probability = _average([math.exp(value) for value in before])
            change = _average([math.exp(value) for value in after]) - probability
            table.add_row(
                *(str(attempt), str(number + 1), *([str(len(losses))] if several else [])),
                *(turn.agent, f"{len(before):,}"),
                *([describe_turn_reward(group.episodes[attempt], number)] if with_rewards else []),
                *(_format_range(advantages), f"{math.fsum(weights):.3g}", f"{math.fsum(losses):+.4f}"),
                *(f"{_average(before):.4f}", _format_change(_average(turn.update.changes))),
                *(f"{probability:.4f}", _format_change(change)),
            )
    return table


def _describe_figures(inspection: UpdateInspection, samples: Sequence[Sample]) -> str:
    """The update as a whole. (Adding 0.0 turns -0.0 into 0.0.)"""
    metrics = inspection.metrics
    loss, norm, rate = metrics["loss"], metrics["grad_norm"], metrics["learning_rate"]
    clipped = f"clipped to {inspection.max_grad_norm:g}" if norm > inspection.max_grad_norm else "not clipped"
    warming = f" (on its way to {inspection.learning_rate:g})" if rate < inspection.learning_rate else ""
    return (
        f"loss {round(loss, 6) + 0.0:.6f} · gradient norm {norm:.4g}, {clipped} (astune.trainer.max_grad_norm) · "
        f"learning rate {rate:.3g}{warming} · KL {_estimate_divergence(inspection, samples):.3g} per token"
    )


def _estimate_divergence(inspection: UpdateInspection, samples: Sequence[Sample]) -> float:
    """KL(before || after) per token, estimated on the trained tokens in their weights: the mean of r - 1 - ln r with r
    the ratio of probabilities ("k3" in J. Schulman, Approximating KL divergence, 2020)."""
    total = weighed = 0.0
    for sample, updates in zip(samples, inspection.samples, strict=True):
        for update, weight in zip(updates, sample.weights, strict=True):
            if update is not None:
                total += weight * math.fsum(math.expm1(min(change, MOST_CHANGE)) - change for change in update.changes)
                weighed += weight * len(update.changes)
    return total / weighed


def _describe_gains(attempts: Mapping[int, _Attempt], group: Group) -> str:
    """Says how likely each attempt became, the one that gained most first."""
    moved = {number: math.fsum(turn.moved for turn in turns.values()) for number, turns in attempts.items()}
    alike: dict[tuple[float | None, str], list[str]] = defaultdict(list)
    for number in sorted(moved, key=lambda number: -moved[number]):
        alike[group.episodes[number].reward, _describe_ratio(moved[number])].append(str(number))
    parts = [
        f"attempt{'s' * (len(numbers) > 1)} {' and '.join(numbers)} (reward {reward:g}) became {times} as likely"
        for (reward, times), numbers in alike.items()
    ]
    for number, episode in enumerate(group.episodes):
        if number not in attempts:
            judged = episode.verdict is not None
            parts.append(
                f"attempt {number} {'has no token in the loss' if judged else 'was not judged and is left out'}"
            )
    return ", ".join(parts)


def _describe_ratio(log_ratio: float) -> str:
    """A ratio in words, in as many digits as tell it from 1.

    >>> _describe_ratio(0.6), _describe_ratio(0.0003), _describe_ratio(-30.0), _describe_ratio(0.0)
    ('1.8 times', '1.0003 times', '10^-13 times', 'just')
    """
    if abs(log_ratio) > math.log(1000):
        return f"10^{log_ratio / math.log(10):.0f} times"
    ratio = math.exp(log_ratio)
    if ratio == 1:
        return "just"
    if abs(ratio - 1) < 0.1:
        return f"{ratio:.{-math.floor(math.log10(abs(ratio - 1)))}f} times"
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:.0f} times"


def _explain_no_signal(group: Group) -> str:
    """Say for which reason no token of the group is in the loss."""
    judged = [episode for episode in group.episodes if episode.verdict is not None]
    if not judged:
        attempts = len(group.episodes)
        none = "the one attempt was not" if attempts == 1 else f"none of the {attempts} attempts was"
        return f"no reward to learn from, as {none} judged"
    excluded = {turn.excluded for episode in judged for turn in episode.turns}
    if None not in excluded:
        return f"no token that was sampled carries loss ({', '.join(sorted(map(str, excluded))) or 'no model call'})"
    if len(judged) == 1:
        return (
            "an advantage compares attempts at the same task, and one was judged (--repeat 4 makes four, "
            "astune.debug.num_repeat)"
        )
    rewards = [episode.verdict.reward for episode in judged if episode.verdict is not None]
    if len(set(without_noise(rewards))) == 1:
        return f"all {len(judged)} judged attempts have reward {rewards[0]:g}, so none is better than another"
    return "the advantages of all turns that carry loss are 0"


def _print_tokens(console: Console, attempts: Mapping[int, _Attempt], pieces: Pieces) -> None:
    changes = [change for turns in attempts.values() for turn in turns.values() for change in turn.update.changes]
    largest = max(map(abs, changes))
    console.print()
    if not console.is_terminal:
        _print_indented(console, Text("the tokens whose logprobs change most"))
        _print_indented(console, _make_change_table(attempts, pieces))
        return
    legend = ("likelier", "bold green"), ", ", ("less likely", "bold red"), ", ", ("hardly changed", "dim")
    _print_indented(console, Text.assemble("trained tokens after the update: ", *legend))
    for attempt, turns in attempts.items():
        _print_coloured(console, attempt, turns, pieces, largest)


def _print_coloured(console: Console, attempt: int, turns: _Attempt, pieces: Pieces, largest: float) -> None:
    for number, turn in turns.items():
        _print_indented(console, Text.assemble((f"attempt {attempt}, turn {number + 1}, ", "dim"), (turn.agent, "dim")))
        text = Text(overflow="fold")
        for piece, change in zip(pieces(turn.token_ids), turn.update.changes, strict=True):
            text.append(visible(piece, keep="\n"), _choose_style(change, largest))
        console.print(Padding(text, (0, 0, 0, 4), expand=False))


def _choose_style(change: float, largest: float) -> str:
    if abs(change) <= SMALL * largest:
        return "dim"
    colour = "green" if change > 0 else "red"
    return f"bold {colour}" if abs(change) > LARGE * largest else colour


def _make_change_table(attempts: Mapping[int, _Attempt], pieces: Pieces) -> Table:
    """`MOST_CHANGED` tokens of each attempt."""
    table = make_table("attempt", "turn", "token", "logprob", "change", left=("token",), gap=2)
    for attempt, turns in attempts.items():
        rows = [
            (number, piece, before, after)
            for number, turn in turns.items()
            for piece, before, after in zip(pieces(turn.token_ids), turn.update.before, turn.update.after, strict=True)
        ]
        for number, piece, before, after in sorted(rows, key=lambda row: -abs(row[3] - row[2]))[:MOST_CHANGED]:
            moved = f"{before:.4f} -> {after:.4f}"
            table.add_row(
                str(attempt),
                str(number + 1),
                Text(f"'{visible(piece, keep='')}'"),
                moved,
                _format_change(after - before),
            )
    return table


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _format_range(values: Sequence[float]) -> str:
    """The least and the greatest; one if they are equal."""
    least, greatest = min(values), max(values)
    return f"{least:+.3f}" if least == greatest else f"{least:+.2f} to {greatest:+.2f}"


def _format_change(change: float) -> str:
    """Four decimals, or what is left of them as a power of ten."""
    return f"{change:+.4f}" if change == 0 or abs(change) >= 1e-4 else f"{change:+.1e}"
