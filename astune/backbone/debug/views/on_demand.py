"""Show messages, tokens, tools, timelines, forks or the verdict of the episode under way: the command `show`.

Text of tasks and agents is never read as rich's markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table

from astune.backbone.debug.stops.stop import Stop
from astune.backbone.debug.views.screen import message_in_words, print_indented
from astune.backbone.debug.views.tables import describe_rewards, make_timelines_table
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import reasoning_of, show_content
from astune.errors import AstuneError
from astune.monitor.words import FORKS
from astune.ropes import common_start
from astune.support.terminal import Console, Text, make_table
from astune.types import Timeline, Turn

TRAINED, SAMPLED, CONTEXT = "green", "yellow", "dim"
MOST_ROWS = 200
"""Tokens in a table, the last ones."""
AROUND = 12
"""Tokens on each side of a fork that are shown."""


class NothingToShow(AstuneError):
    pass


def show_messages(console: Console, stop: Stop) -> None:
    """The conversation as the agent sent it, and the answer if there is one. At the end of an episode: those of all
    agents, each whole."""
    for title, messages in _list_conversations(stop):
        console.print(Text(title, style="bold"))
        for number, message in enumerate(messages, start=1):
            console.print(Text.assemble((f"{number:>3} ", "dim"), (str(message.get("role")), "bold cyan")))
            if reasoning := reasoning_of(message):
                _print(console, reasoning, "dim italic")
            if text := show_content(message):
                _print(console, text)
            for call in message.get("tool_calls") or ():
                _print(console, f"{call['function']['name']}({call['function']['arguments']})", "magenta")


def show_tools(console: Console, stop: Stop) -> None:
    """The tools that the agent offered the model, with the types of the arguments."""
    tools = stop.call.request.tools if stop.call else _find_last_turn(stop).tools
    if not tools:
        raise NothingToShow("the agent offers no tools in this call")
    for tool in tools:
        function = tool.get("function", tool)
        schema = function.get("parameters") or {}
        required = schema.get("required") or ()
        shown = [
            f"{name}: {entry.get('type', 'any')}{'' if name in required else ' (optional)'}"
            for name, entry in (schema.get("properties") or {}).items()
        ]
        console.print(Text.assemble((str(function.get("name")), "bold magenta"), f"({', '.join(shown)})"))
        _print(console, str(function.get("description") or ""), "dim")


def show_tokens(console: Console, stop: Stop) -> None:
    """The tokens of the call as the model has them, sampled ones marked, and a table of those of the answer. At the
    end of an episode: every training row."""
    if stop.call is None:
        for timeline in stop.running.tracker.timelines():
            console.print(Text(f"row of {timeline.agent}, {len(timeline.token_ids):,} tokens", style="bold"))
            _print(console, _mark(console, timeline, _format_of(stop, timeline)))
        return
    answer = stop.answers.current if stop.answers else None
    text = Text()
    for part, style in _split_parts(stop):
        text.append(part if console.color_system else _bracket(part, style), style=style)
    if answer is not None:
        part = stop.call.chat_format.decode(answer.output_ids)
        style = TRAINED if _explain_not_trained(stop) is None else SAMPLED
        text.append(part if console.color_system else _bracket(part, style), style=f"bold {style}")
    _print(console, text)
    _print(console, _write_legend(console), "dim")
    if answer is not None:
        why_not = _explain_not_trained(stop)
        pieces = stop.call.chat_format.pieces(tuple(answer.output_ids))
        rows = zip(answer.output_ids, answer.logprobs, pieces, strict=True)
        start = len(answer.prompt_ids)
        trained = "yes" if why_not is None else f"no: {why_not}"
        console.print(
            _make_token_table([(start + at, *row, answer.policy_version, trained) for at, row in enumerate(rows)])
        )


def show_timelines(console: Console, stop: Stop) -> None:
    """The training rows so far, and what the call under way will do to them."""
    timelines = stop.running.tracker.timelines()
    if timelines:
        console.print(Padding(make_timelines_table(timelines), (0, 0, 0, 2), expand=False))
    if stop.call is not None:
        agent, fork = stop.call.agent, stop.call.prompt.fork
        if not any(line.agent == agent for line in timelines):
            will = f"begins the first row of {agent}"
        else:
            will = f"goes on from a row of {agent}" if fork is None else f"begins a new row ({fork})"
        console.print(Text(f"  this call {will}", style="dim"))
    elif not timelines:
        raise NothingToShow("no call has been answered yet, so there are no training rows")


def show_forks(console: Console, stop: Stop) -> None:
    """The reason for which each row does not go on from an earlier one, and the tokens at which they part."""
    timelines = stop.running.tracker.timelines()
    forked = [number for number, line in enumerate(timelines) if line.fork is not None]
    if not forked:
        raise NothingToShow("no row forks: every call went on from the tokens of the one before it")
    for number in forked:
        line = timelines[number]
        assert line.fork is not None
        console.print(Text.assemble((f"row {number}", "bold cyan"), f"  {line.fork}: {FORKS[line.fork]}"))
        _print_parting(console, timelines[:number], line, _format_of(stop, line))


def show_verdict(console: Console, stop: Stop) -> None:
    """The verdict, and what the judge was given."""
    if stop.episode is None:
        raise NothingToShow("the workflow is still running: there is no verdict yet (judge runs on to it)")
    output, verdict = stop.episode.output, stop.episode.verdict
    _print(console, f"the workflow returned {None if output is None else output.answer!r}")
    _print(console, f"the reference is {stop.running.task.answer!r}")
    if verdict is None:
        _print(console, "not judged yet" if stop.kind == "judge" else "none: the episode was not judged", SAMPLED)
        return
    _print(console, f"reward {verdict.reward:g} by {verdict.judged_by}: {verdict.reason or 'no reason given'}", "bold")
    if rewards := describe_rewards(stop.episode):
        _print(console, f"rewards of single agents and turns: {rewards}", "bold")
    for name, value in {**({} if output is None else output.metrics), **verdict.metrics}.items():
        _print(console, f"{name} = {value:g}", "dim")


def show_task(console: Console, stop: Stop) -> None:
    """The task as it was read."""
    task = stop.running.task
    for name, value in (("task_id", task.task_id), ("query", task.query), ("answer", task.answer)):
        console.print(Text.assemble((f"  {name:<9}", "dim"), str(value)))
    for name, value in task.metadata.items():
        console.print(Text.assemble((f"  {name:<9}", "dim"), json.dumps(value, ensure_ascii=False, default=str)))


def show_answers(console: Console, stop: Stop) -> None:
    """The answers drawn at this stop; the agent gets the one that is marked."""
    if stop.call is None or stop.answers is None or not stop.answers.given:
        raise NothingToShow("there is no answer yet")
    for number, answer in enumerate(stop.answers.given):
        mark = "▸" if number == stop.answers.chosen else " "
        logprob = math.fsum(answer.logprobs)
        facts = f"{len(answer.output_ids)} tokens, logprob {logprob:.2f}, {message_in_words(answer.message)}"
        console.print(Text.assemble((f"{mark} {number} ", "bold"), (facts, "dim")))
        _print(console, stop.call.chat_format.decode(answer.output_ids).rstrip())


SHOWS = {
    "messages": show_messages,
    "tokens": show_tokens,
    "tools": show_tools,
    "timelines": show_timelines,
    "forks": show_forks,
    "verdict": show_verdict,
    "task": show_task,
    "answers": show_answers,
}


def _format_of(stop: Stop, line: Timeline) -> ChatFormat:
    tracker = stop.running.tracker
    return tracker.format_of(tracker.turns[line.spans[0].turn].model)


def _find_last_turn(stop: Stop) -> Turn:
    if not stop.running.tracker.turns:
        raise NothingToShow("no model call has been answered in this episode")
    return stop.running.tracker.turns[-1]


def _list_conversations(stop: Stop) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Give the messages of conversations, each with a title: that of the call under way, or at the end of an episode
    one for each training row, as its last turn saw it."""
    episode_id, tracker = stop.running.episode_id, stop.running.tracker
    if stop.call is not None:
        answer = stop.answers.current if stop.answers is not None else None
        said = [] if answer is None else [answer.message]
        yield f"{stop.call.agent} in {episode_id}, call {stop.call.number + 1}", [*stop.call.request.messages, *said]
        return
    _find_last_turn(stop)
    for line in tracker.timelines():
        turn = tracker.turns[line.spans[-1].turn]
        why = "" if line.fork is None else f", a new row ({line.fork})"
        yield f"{line.agent} in {episode_id}{why}", [*turn.messages, {"role": "assistant", **turn.response}]


def _explain_not_trained(stop: Stop) -> str | None:
    """Name the reason for which the answer at this stop would not be trained."""
    assert stop.call is not None and stop.answers is not None and stop.answers.current is not None
    return stop.call.why_not_trained(stop.answers.current)


def _split_parts(stop: Stop) -> Iterator[tuple[str, str]]:
    """The prompt in pieces of text and how each is shown: sampled and trained, sampled, context."""
    assert stop.call is not None
    decode = stop.call.chat_format.decode
    prompt = tuple(stop.call.prompt.ids)
    place = 0
    for start, end, style in _find_sampled(stop, prompt):
        yield decode(prompt[place:start]), CONTEXT
        yield decode(prompt[start:end]), style
        place = end
    yield decode(prompt[place:]), CONTEXT


def _find_sampled(stop: Stop, prompt: Sequence[int]) -> list[tuple[int, int, str]]:
    """The ranges that earlier turns sampled, in the row that the prompt goes on from."""
    assert stop.call is not None
    best: Timeline | None = None
    for line in stop.running.tracker.timelines():
        ids = tuple(line.token_ids)
        if line.agent == stop.call.agent and prompt[: len(ids)] == ids:
            best = line if best is None or len(ids) > len(best.token_ids) else best
    return [] if best is None else [(s.start, s.stop, TRAINED if s.trainable else SAMPLED) for s in best.spans]


def _mark(console: Console, timeline: Timeline, chat_format: ChatFormat) -> Text:
    text, place, ids = Text(), 0, tuple(timeline.token_ids)
    for span in timeline.spans:
        style = TRAINED if span.trainable and not span.shared else SAMPLED
        text.append(chat_format.decode(ids[place : span.start]), style=CONTEXT)
        part = chat_format.decode(ids[span.start : span.stop])
        text.append(part if console.color_system else _bracket(part, style), style=style)
        place = span.stop
    return text


def _bracket(text: str, style: str) -> str:
    """Without colours, brackets tell what was sampled."""
    return {TRAINED: f"⟦{text}⟧", SAMPLED: f"⟨{text}⟩"}.get(style, text)


def _write_legend(console: Console) -> str:
    if console.color_system:
        return "green: sampled and trained · yellow: sampled, not trained · dim: context"
    return "⟦…⟧ sampled and trained · ⟨…⟩ sampled, not trained · all else is context"


def _make_token_table(rows: Sequence[tuple[int, int, float, str, int, str]]) -> Padding:
    texts = ("text", "version", "trained")
    table = make_table("place", "id", "logprob", "probability", *texts, left=texts, gap=2)
    for place, token, logprob, piece, version, trained in rows[-MOST_ROWS:]:
        numbers = (f"{place:,}", f"{token}", f"{logprob:.3f}", f"{100 * math.exp(logprob):.1f} %")
        table.add_row(*numbers, repr(piece), str(version), trained)
    return Padding(table, (0, 0, 0, 2), expand=False)


def _print_parting(console: Console, earlier: Sequence[Timeline], line: Timeline, chat_format: ChatFormat) -> None:
    """The tokens around the place where `line` leaves the earlier row of its agent that it shares most with."""
    now = tuple(line.token_ids)
    rows = [tuple(other.token_ids) for other in earlier if other.agent == line.agent]
    if not rows:
        return
    before = max(rows, key=lambda ids: common_start(ids, now))
    place = common_start(before, now)
    shared = chat_format.decode(now[max(0, place - AROUND) : place])
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text(f"equal up to token {place:,}", style="dim"), Text(repr(shared), style="dim"))
    table.add_row("", Text("earlier", style="dim"), Text(repr(chat_format.decode(before[place : place + AROUND]))))
    table.add_row("", Text("now", style="dim"), Text(repr(chat_format.decode(now[place : place + AROUND]))))
    console.print(table)


def _print(console: Console, text: str | Text, style: str = "") -> None:
    print_indented(console, text if isinstance(text, Text) else Text(text, style=style), by=4)
