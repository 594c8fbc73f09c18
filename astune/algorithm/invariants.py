"""Check what must hold of every step, from the turns alone (`astune.monitor.check_invariants`).

Written against the definitions, not against the code that makes timelines and samples: it shares nothing with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from astune.algorithm.receipt import Receipt
from astune.errors import InvariantError
from astune.types import Episode, Group, Sample, Timeline


def check_episode(episode: Episode) -> None:
    """Every turn is in its timelines as the engine saw and sampled it, and has exactly one span that is not shared.

    Raises InvariantError naming the episode and the turn. Costs time linear in the tokens of the timelines.
    """
    owned: Counter[int] = Counter()
    for line in episode.timelines:
        _check_timeline(episode, line)
        owned.update(span.turn for span in line.spans if not span.shared)
    for number in range(len(episode.turns)):
        if owned[number] != 1:
            raise _report_fault(episode, f"turn {number} has {owned[number]} spans of its own; expected 1")
    if owned.keys() - set(range(len(episode.turns))):
        raise _report_fault(episode, f"a timeline names turns that do not exist: {sorted(owned)}")


def _check_timeline(episode: Episode, line: Timeline) -> None:
    ids = tuple(line.token_ids)
    for span in line.spans:
        turn = episode.turns[span.turn]
        same = (
            turn.agent == line.agent
            and ids[: span.start] == tuple(turn.prompt_ids)
            and ids[span.start : span.stop] == tuple(turn.output_ids)
            and tuple(span.logprobs) == tuple(turn.logprobs)
            and (span.policy_version, span.temperature) == (turn.policy_version, turn.temperature)
            and span.trainable == (turn.excluded is None)
        )
        if not same:
            raise _report_fault(episode, f"turn {span.turn} is not in its timeline as it was sampled")


def check_step(groups: Sequence[Group], samples: Sequence[Sample], receipt: Receipt) -> None:
    """Every episode holds; the receipt accounts for every sampled token; only trainable tokens have weight.

    Raises InvariantError.
    """
    sampled = 0
    episodes = {episode.episode_id: episode for group in groups for episode in group.episodes}
    for episode in episodes.values():
        check_episode(episode)
        sampled += sum(len(turn.output_ids) for turn in episode.turns)
    trained: set[tuple[str, int]] = set()
    for sample in samples:
        episode = episodes[sample.episode_id]
        for span, weight, advantage in zip(sample.timeline.spans, sample.weights, sample.advantages, strict=True):
            if not (math.isfinite(weight) and math.isfinite(advantage) and weight >= 0.0):
                raise _report_fault(episode, f"turn {span.turn} has weight {weight}, advantage {advantage}")
            if weight and episode.turns[span.turn].excluded is not None:
                raise _report_fault(episode, f"turn {span.turn} is excluded from training and has weight")
            if weight:
                trained.add((sample.episode_id, span.turn))
    tokens = sum(len(episodes[name].turns[turn].output_ids) for name, turn in trained)
    weight_sum = math.fsum(sample.weight_sum for sample in samples)
    if (sampled, tokens) != (receipt.sampled, receipt.trained) or abs(weight_sum - receipt.weight_sum) > 1e-9:
        raise InvariantError(f"{receipt} does not match: {sampled} sampled, {tokens} trained, weights {weight_sum}")
    if receipt.sampled != receipt.trained + sum(receipt.dropped.values()):
        raise InvariantError(f"{receipt} does not account for every sampled token")


def _report_fault(episode: Episode, what: str) -> InvariantError:
    return InvariantError(f"episode {episode.episode_id}: {what}. This is a fault of ASTune; please report it.")
