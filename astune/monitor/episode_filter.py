"""Choose episodes by conditions in words, all of which must hold.

    keep = parse_filter("reward<0.5 and not error and agent=solver")
    [record for record in read_episodes(path) if keep(record)]

    reward<0.5  turns>3  tokens>100  step>=10       compared with < <= > >= == = !=
    stop=max_turns  task=ID  agent=NAME  phase=train  compared with = == !=
    error=judge                                     the stage or the kind of the error
    passed  error  unjudged                         true or not; `not` before any condition turns it round

Conditions are joined by `and` or a comma; a value with a space or a comma stands in quotes. An episode that nobody
judged has no reward, which is below nothing and above nothing; where the judge does not speak of success, neither
`passed` nor `not passed` holds.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from astune.errors import ConfigError, nearest
from astune.monitor.episodes import EpisodeRecord
from astune.types import StopReason

Filter = Callable[[EpisodeRecord], bool]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}
_NUMBERS: Mapping[str, Callable[[EpisodeRecord], float | None]] = {
    "reward": lambda record: record.episode.reward,
    "turns": lambda record: len(record.episode.turns),
    "tokens": lambda record: sum(len(turn.output_ids) for turn in record.episode.turns),
    "step": lambda record: record.step,
}


def _error(record: EpisodeRecord) -> set[str]:
    error = record.episode.error
    return set() if error is None else {error.stage, error.kind}


_TEXTS: Mapping[str, Callable[[EpisodeRecord], set[str]]] = {
    "stop": lambda record: {record.episode.stop_reason.value},
    "task": lambda record: {record.episode.task.task_id},
    "agent": lambda record: {turn.agent for turn in record.episode.turns},
    "phase": lambda record: {record.phase},
    "error": _error,
}
"""Each gives the names that the episode has."""
_FLAGS: Mapping[str, Callable[[EpisodeRecord], bool | None]] = {
    "passed": lambda record: None if record.episode.verdict is None else record.episode.verdict.passed,
    "error": lambda record: record.episode.error is not None,
    "unjudged": lambda record: record.episode.verdict is None,
}
_NAMES = tuple(dict.fromkeys((*_NUMBERS, *_TEXTS, *_FLAGS)))
_QUOTED = r"\"[^\"]*\"|'[^']*'"
_CONDITION = re.compile(rf"(not\s+)?(\w+)\s*(?:(<=|>=|==|!=|<|>|=)\s*({_QUOTED}|.*\S))?", re.DOTALL)


def parse_filter(text: str) -> Filter:
    """Raises ConfigError that names the condition that is wrong, and what there is."""
    conditions = [_condition(piece, text) for piece in _pieces(text)]
    return lambda record: all(condition(record) for condition in conditions)


def _pieces(text: str) -> list[str]:
    """The conditions of `text`, split at commas and `and` outside of quotes."""
    pieces, start = [], 0
    for found in re.finditer(rf"{_QUOTED}|,|\s+and\s+", text):
        if found[0][0] not in "\"'":
            pieces.append(text[start : found.start()])
            start = found.end()
    return [piece.strip() for piece in (*pieces, text[start:])]


def _condition(piece: str, text: str) -> Filter:
    found = _CONDITION.fullmatch(piece)
    if found is None:
        what = f"{piece!r} is no condition" if piece else "a condition is missing"
        raise _wrong(text, f"{what}; expected as 'reward<0.5', 'stop=max_turns' or 'not passed'")
    negated, name, compared, value = found.groups()
    if name not in _NAMES:
        raise _wrong(text, f"{piece!r}: there is no {name!r}.{nearest(name, _NAMES)} There are: {', '.join(_NAMES)}")
    if compared is None:
        return _flag(name, bool(negated), piece, text)
    if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1:
        value = value[1:-1]
    holds = (
        _number_filter(name, compared, value, piece, text)
        if name in _NUMBERS
        else _text_filter(name, compared, value, piece, text)
    )
    return (lambda record: not holds(record)) if negated else holds


def _flag(name: str, negated: bool, piece: str, text: str) -> Filter:
    if name not in _FLAGS:
        example = f"{name}<1" if name in _NUMBERS else f"{name}=..."
        raise _wrong(text, f"{piece!r}: {name} needs a value, as '{example}'")
    return lambda record: _FLAGS[name](record) is (not negated)


def _number_filter(name: str, compared: str, value: str, piece: str, text: str) -> Filter:
    try:
        wanted = float(value)
    except ValueError:
        raise _wrong(text, f"{piece!r}: {name} is compared with a number, got {value!r}") from None

    def holds(record: EpisodeRecord) -> bool:
        found = _NUMBERS[name](record)
        return found is not None and _COMPARE[compared](found, wanted)

    return holds


def _text_filter(name: str, compared: str, value: str, piece: str, text: str) -> Filter:
    if name not in _TEXTS:
        raise _wrong(text, f"{piece!r}: {name} is true or not and takes no value, as {name!r} or 'not {name}'")
    if compared not in ("=", "==", "!="):
        raise _wrong(text, f"{piece!r}: {name} is a name: compare it with = or !=")
    stops = [reason.value for reason in StopReason]
    if name == "stop" and value not in stops:
        raise _wrong(text, f"{piece!r}: no episode stops so.{nearest(value, stops)} There are: {', '.join(stops)}")
    return lambda record: (value in _TEXTS[name](record)) is (compared != "!=")


def _wrong(text: str, what: str) -> ConfigError:
    return ConfigError(f"filter {text!r}: {what}")
