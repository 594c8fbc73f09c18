"""What `astune online trace` shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.table import Table

from astune.online.store.aliases import Alias
from astune.online.store.trace import AnswerTrace, TracedEpisode, TracedFeedback, TracedSample, VersionTrace
from astune.online.store.versions import ModelVersion
from astune.support.terminal import Console, Text, make_table

MOST_SHOWN = 40
"""Samples in a table; --json has all."""
LONGEST = 300
"""Characters of what was said."""


def show(found: AnswerTrace | VersionTrace) -> None:
    console = Console(soft_wrap=True)
    for line in answer_lines(found) if isinstance(found, AnswerTrace) else version_lines(found):
        console.print(line if isinstance(line, Table) else Text(line))


def answer_lines(found: AnswerTrace) -> Iterable[str | Table]:
    """Lines about an answer: the request, the version that answered, what users say of it, and what was learned from
    it."""
    yield f"answer        {found.msg_id}, by v{found.version} as {found.model!r}, {_time(found.answered)}"
    yield f"conversation  {found.conversation_id}, number {found.number}" + _list_names(
        user=found.user, client=found.client, agent=found.agent, task=found.task_id, run=found.run_id
    )
    if found.exchange != found.msg_id:
        yield f"exchange      begins with {found.exchange}"
    for message in found.messages:
        yield f"  {message.get('role', '?'):<10}  {_short(message.get('content'))}"
    for turn in found.turns:
        left_out = "" if turn.excluded is None else f"; not trained: {turn.excluded}"
        calls = [call.get("function", {}).get("name") for call in turn.response.get("tool_calls") or []]
        said = _short(turn.response.get("content")) + "".join(f" -> {name}(...)" for name in calls)
        yield f"  answer {turn.choice:<3}  {said}"
        tokens = f"{turn.prompt_tokens} tokens read, {turn.output_tokens} sampled"
        yield f"              {tokens}, {turn.finish_reason}{left_out}"
    if found.redacted:
        yield "  redacted: its tokens were not kept, so it is not trained"
    yield from map(_feedback, found.feedback)
    if not found.feedback:
        yield "feedback      none"
    for episode in found.episodes:
        yield from _episode(episode)
    if not found.episodes:
        yield "commits       none has learned from it yet"


def version_lines(found: VersionTrace) -> Iterable[str | Table]:
    """Lines about a version: the data and the commit that made it, and its answers."""
    parents = " <- ".join(f"v{parent}" for parent in found.parents) or "none"
    children = ", ".join(f"v{child}" for child in found.children) or "none"
    named = "".join(f", {each}" for each in (*found.aliases, found.name) if each)
    yield f"version     v{found.version}{named}, {_time(found.made)}"
    if found.origin is not None:
        yield f"imported    {found.origin}"
    if found.held is not None:
        yield f"held        {found.held}"
    yield f"parents     {parents}"
    yield f"children    {children}"
    yield f"checkpoint  {found.folder or 'the model as configured'}" + (
        f", sha256 {found.sha256}" if found.sha256 else ""
    )
    if found.pruned is not None:
        yield f"pruned      {_time(found.pruned)}: the files are gone"
    yield f"answered    {found.answered} requests of {found.conversations} conversations"
    if found.commit is not None:
        commit = found.commit
        yield f"commit      {commit['id']}, asked for by {commit['by']}, {_time(commit['asked'])}, {commit['state']}"
    for name, value in sorted(found.figures.items()):
        yield f"  {name:<32} {value:g}" if isinstance(value, (int, float)) else f"  {name:<32} {value}"
    if found.samples:
        yield f"made by {len(found.samples)} turns of {len(found.rewards)} episodes"
        yield _samples(found.samples[:MOST_SHOWN], found.rewards)
    if len(found.samples) > MOST_SHOWN:
        yield f"... and {len(found.samples) - MOST_SHOWN} more (--json has all)"
    for reason, count in found.left_out.items():
        yield f"left out    {count} episodes: {reason or 'no reason is written'}"


def version_table(made: Sequence[ModelVersion], aliases: Sequence[Alias]) -> Table:
    """Every version in a row, the newest last."""
    table = make_table("version", "is", "parent", "made", "by", "reward", "state", left=("is", "by", "state"), gap=2)
    for version in made:
        named = [version.name] if version.name else []
        named += [alias.name for alias in aliases if alias.version == version.number]
        by = f"commit {version.commit_id}" if version.commit_id is not None else version.origin or "as configured"
        reward = version.figures.get("reward/mean")
        state = [version.held or "", "" if version.pruned is None else "pruned"]
        table.add_row(
            f"v{version.number}",
            ", ".join(named),
            "" if version.parent is None else f"v{version.parent}",
            _time(version.made),
            by,
            "" if reward is None else f"{reward:.3f}",
            ", ".join(filter(None, state)),
        )
    return table


def _feedback(opinion: TracedFeedback) -> str:
    value = "" if opinion.value is None else f" {opinion.value:g}"
    texts = (("comment", opinion.comment), ("correction", opinion.correction), ("hint", opinion.hint))
    said = "".join(f", {what}: {_short(text)}" for what, text in texts if text)
    reason = f" ({opinion.reason})" if opinion.reason else ""
    name = "" if opinion.name == "reward" else f" {opinion.name}"
    who = opinion.author or "nobody named"
    return (
        f"feedback      {opinion.kind}{name}{value} by {who}, {_time(opinion.received)}: {opinion.state}{reason}{said}"
    )


def _episode(episode: TracedEpisode) -> Iterable[str | Table]:
    reward = "no reward" if episode.reward is None else f"reward {episode.reward:g}"
    made = f"made v{episode.version}" if episode.version is not None else f"is {episode.commit_state}"
    yield f"episode       {episode.episode_id}, {reward}, {episode.state}" + (
        f": {episode.reason}" if episode.reason else ""
    )
    yield f"  commit {episode.commit} on v{episode.base_version} {made}"
    if episode.samples:
        yield _samples(episode.samples, {episode.episode_id: episode.reward})


def _samples(samples: Sequence[TracedSample], rewards: Any) -> Table:
    names = ("answer", "choice", "episode", "reward", "method", "advantage", "weight", "tokens")
    table = make_table(*names, left=("answer", "episode", "method"), gap=2)
    for each in samples:
        reward = rewards.get(each.episode_id)
        table.add_row(
            each.msg_id,
            str(each.choice),
            each.episode_id or "",
            "" if reward is None else f"{reward:g}",
            each.method,
            f"{each.advantage:+.4g}",
            f"{each.weight:.3g}",
            str(each.tokens),
        )
    return table


def _list_names(**names: str | None) -> str:
    return "".join(f", {what} {name}" for what, name in names.items() if name)


def _short(content: Any) -> str:
    text = " ".join(str("" if content is None else content).split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
