"""Traces: from an answer to the versions that were trained on it, and from a version to its answers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from astune.errors import StoreError
from astune.online.store.aliases import every_alias, resolve
from astune.online.store.answers import find_judged, load_answers
from astune.online.store.versions import load_tree
from astune.store.tables import (
    commits,
    conversations,
    episode_messages,
    episodes,
    exposures,
    feedback,
    feedback_messages,
    requests,
    samples,
    turns,
    versions,
)
from astune.token_ids import WIDTH

NEWEST = 5000
"""Newest ids among which the nearest to an unknown one is looked for."""


@dataclass(frozen=True)
class TracedTurn:
    """One of the answers to a request, with numbers of tokens. `excluded` says why it is not trained; None if it may
    be."""

    choice: int
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    temperature: float
    excluded: str | None
    response: Mapping[str, Any]


@dataclass(frozen=True)
class TracedFeedback:
    """Feedback that judges the answer: it names the answers `named`, this one or later ones of the same exchange."""

    number: int
    received: float
    author: str
    kind: str
    name: str
    value: float | None
    comment: str | None
    correction: str | None
    state: str
    reason: str | None
    hint: str | None
    """What would have been better, as a judge says."""
    named: tuple[str, ...]


@dataclass(frozen=True)
class TracedSample:
    """The share of an answer in an update; `weight` is that of each token."""

    msg_id: str
    choice: int
    episode_id: str | None
    method: str
    advantage: float
    weight: float
    tokens: int


@dataclass(frozen=True)
class TracedEpisode:
    """An episode with the answer, and its commit. `version` is the version that the commit made; None if it made
    none."""

    episode_id: str
    reward: float | None
    state: str
    reason: str | None
    commit: int
    commit_state: str
    base_version: int | None
    version: int | None
    samples: tuple[TracedSample, ...]


@dataclass(frozen=True)
class AnswerTrace:
    """An answer with its request, feedback, episodes and versions. Times are seconds since 1970."""

    msg_id: str
    conversation_id: str
    number: int
    exchange: str
    follows: str | None
    agent: str
    client: str
    user: str | None
    task_id: str | None
    run_id: str | None
    model: str
    version: int
    asked: float
    answered: float
    redacted: bool
    messages: Sequence[Mapping[str, Any]]
    """The messages that were new in this request."""
    turns: tuple[TracedTurn, ...]
    feedback: tuple[TracedFeedback, ...]
    episodes: tuple[TracedEpisode, ...]


@dataclass(frozen=True)
class VersionTrace:
    """A version with the samples that it was trained on and counts of its answers. `parents` are in order, the nearest
    first; `left_out` counts episodes of its commit by reason; `answered` counts requests."""

    version: int
    parents: tuple[int, ...]
    children: tuple[int, ...]
    made: float
    folder: str | None
    sha256: str | None
    config: Mapping[str, Any]
    figures: Mapping[str, Any]
    commit: Mapping[str, Any] | None
    samples: tuple[TracedSample, ...]
    rewards: Mapping[str, float | None]
    """The rewards of the episodes that were trained."""
    left_out: Mapping[str, int]
    answered: int
    conversations: int
    aliases: tuple[str, ...]
    name: str | None
    origin: str | None
    """The checkpoint of a training run that it was imported from."""
    held: str | None
    pruned: float | None


def trace(connection: sa.Connection, text: str) -> AnswerTrace | VersionTrace:
    """Trace an answer by its msg_id, or a version written as `v7` or by an alias. Raises StoreError with the nearest id
    for an unknown one."""
    if connection.scalar(sa.select(requests.c.msg_id).where(requests.c.msg_id == text)) is not None:
        return trace_answer(connection, text)
    if re.fullmatch(r"v\d{1,9}", text):
        return trace_version(connection, int(text[1:]))
    if text in {alias.name for alias in every_alias(connection)}:
        return trace_version(connection, resolve(connection, text).number)
    raise StoreError(_unknown(connection, text))


def trace_answer(connection: sa.Connection, msg_id: str) -> AnswerTrace:
    """Raises StoreError for an unknown one."""
    row = connection.execute(sa.select(requests).where(requests.c.msg_id == msg_id)).mappings().first()
    if row is None:
        raise StoreError(_unknown(connection, msg_id))
    sampled = connection.execute(sa.select(turns).where(turns.c.msg_id == msg_id).order_by(turns.c.choice))
    plain = {name: row[name] for name in AnswerTrace.__dataclass_fields__ if name in row}
    return AnswerTrace(
        **plain,
        turns=tuple(
            TracedTurn(
                choice=turn.choice,
                prompt_tokens=turn.prompt_kept + len(turn.prompt_ids) // WIDTH,
                output_tokens=len(turn.output_ids) // WIDTH,
                finish_reason=turn.finish_reason,
                temperature=turn.temperature,
                excluded=turn.excluded,
                response=turn.response,
            )
            for turn in sampled
        ),
        feedback=_feedback_on(connection, msg_id),
        episodes=_episodes_of(connection, msg_id),
    )


def trace_version(connection: sa.Connection, version: int) -> VersionTrace:
    """Raises StoreError for an unknown one."""
    row = connection.execute(sa.select(versions).where(versions.c.version == version)).first()
    parent_of = {each.version: each.parent for each in connection.execute(sa.select(versions))}
    if row is None:
        last = max(parent_of, default=None)
        raise StoreError(
            f"there is no version v{version}; " + ("there is none" if last is None else f"the last is v{last}")
        )
    commit = connection.execute(sa.select(commits).where(commits.c.id == row.commit_id)).mappings().first()
    made_of = connection.execute(
        sa.select(episodes.c.episode_id, episodes.c.state, episodes.c.reason, episodes.c.reward)
        .where(episodes.c.commit_id == row.commit_id)
        .order_by(episodes.c.episode_id)
    ).all()
    reasons = [episode.reason or "" for episode in made_of if episode.state == "left_out"]
    answered = sa.select(sa.func.count()).where(requests.c.version == version)
    exposed = sa.select(sa.func.count()).where(exposures.c.version == version)
    return VersionTrace(
        version=version,
        parents=tuple(load_tree(connection).path(version)[1:]),
        children=tuple(sorted(child for child, parent in parent_of.items() if parent == version)),
        made=row.made,
        folder=row.folder,
        sha256=row.sha256,
        config=row.config,
        figures=row.figures,
        commit=None if commit is None else dict(commit),
        samples=_samples(connection, samples.c.commit_id == row.commit_id),
        rewards={each.episode_id: each.reward for each in made_of if each.state == "trained"},
        left_out={reason: reasons.count(reason) for reason in sorted(set(reasons))},
        answered=connection.scalar(answered) or 0,
        conversations=connection.scalar(exposed) or 0,
        aliases=tuple(alias.name for alias in every_alias(connection) if alias.version == version),
        **{name: getattr(row, name) for name in ("name", "origin", "held", "pruned")},
    )


def _feedback_on(connection: sa.Connection, msg_id: str) -> tuple[TracedFeedback, ...]:
    """Find the feedback that judges the answer: on it, and on later answers of its exchange."""
    known = load_answers(connection, [msg_id])
    about = sa.select(feedback_messages.c.feedback_id).where(feedback_messages.c.msg_id.in_(list(known)))
    found = []
    for row in connection.execute(sa.select(feedback).where(feedback.c.id.in_(about)).order_by(feedback.c.id)):
        of_it = feedback_messages.c.feedback_id == row.id
        order = feedback_messages.c.msg_id
        named = tuple(connection.scalars(sa.select(feedback_messages.c.msg_id).where(of_it).order_by(order)))
        if msg_id in find_judged(known, named):
            values = {name: getattr(row, name) for name in TracedFeedback.__dataclass_fields__ if name in row._mapping}
            found.append(TracedFeedback(number=row.id, named=named, **values))
    return tuple(found)


def _episodes_of(connection: sa.Connection, msg_id: str) -> tuple[TracedEpisode, ...]:
    rows = connection.execute(
        sa.select(episodes, commits.c.state.label("commit_state"), commits.c.base_version, commits.c.version)
        .join(episode_messages, episode_messages.c.episode_id == episodes.c.episode_id)
        .join(commits, commits.c.id == episodes.c.commit_id)
        .where(episode_messages.c.msg_id == msg_id)
        .order_by(episodes.c.commit_id, episodes.c.episode_id)
    )
    return tuple(
        TracedEpisode(
            episode_id=row.episode_id,
            reward=row.reward,
            state=row.state,
            reason=row.reason,
            commit=row.commit_id,
            commit_state=row.commit_state,
            base_version=row.base_version,
            version=row.version,
            samples=_samples(connection, (samples.c.episode_id == row.episode_id) & (requests.c.msg_id == msg_id)),
        )
        for row in rows
    )


def _samples(connection: sa.Connection, which: sa.ColumnElement[bool]) -> tuple[TracedSample, ...]:
    columns = [samples.c[name] for name in ("episode_id", "method", "advantage", "weight", "tokens")]
    rows = connection.execute(
        sa.select(requests.c.msg_id, turns.c.choice, *columns)
        .join(turns, turns.c.id == samples.c.turn_id)
        .join(requests, requests.c.msg_id == turns.c.msg_id)
        .where(which)
        .order_by(samples.c.id)
    )
    return tuple(TracedSample(**row) for row in rows.mappings())


def _unknown(connection: sa.Connection, text: str) -> str:
    of_it = sa.select(requests.c.msg_id).where(requests.c.conversation_id == text).order_by(requests.c.number.desc())
    last = connection.scalar(of_it.limit(1))
    if last is not None:
        return f"{text!r} is a conversation, whose last answer is {last!r}: trace that"
    named = connection.scalar(
        sa.select(feedback_messages.c.feedback_id).where(feedback_messages.c.msg_id == text).limit(1)
    )
    if named is not None:
        return f"there is no answer {text!r} in the store; feedback {named} names it and waits, or came too late"
    newest = connection.scalars(sa.select(requests.c.msg_id).order_by(requests.c.answered.desc()).limit(NEWEST)).all()
    if not newest:
        none = connection.scalar(sa.select(sa.func.count()).select_from(conversations)) == 0
        return f"there is no answer {text!r}" + ("; nothing was recorded yet" if none else "")
    near = difflib.get_close_matches(text, newest, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" The newest is {newest[0]!r}."
    return f"there is no answer {text!r} in the store.{hint} Versions are written v1, v2, ..."
