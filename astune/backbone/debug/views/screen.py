"""Print a debug run as it goes: sections on a terminal, plain text when piped."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table

from astune.backbone.debug.views.tables import (
    count_left_out,
    describe_rewards,
    make_credit_table,
    make_summary_table,
    make_timelines_table,
    make_weights_table,
)
from astune.config.schema import AstuneConfig
from astune.context_tracker.calls import Answer, Call
from astune.monitor.words import LEFT_OUT, UNREAD
from astune.support.chinese import localize
from astune.support.run_log import file_logger
from astune.support.terminal import Console, Text
from astune.support.user_code import own_line_first, part_of_astune
from astune.support.user_values import text_of
from astune.types import Episode, Group, Sample, Task

log = file_logger(__name__)

MARKUP = r"<\|[^|<>]*\|>|</?(?:think|tools|tool_call|tool_response)>"
"""Text by which chat templates mark roles, reasoning and tools."""


class Screen:
    """Prints; knows nothing of how a run goes on. Text of tasks and agents is never read as rich's markup."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def run_started(self, config: AstuneConfig, model: str, run_dir: Path, what: str) -> None:
        self._print_line(f"debug: {what}, one after another, no time limit, nothing is trained", "bold")
        self._print_line(f"model {model} · workflow {config.rollout.agentscope_learn_protocol}", "dim")
        self._print_line(str(run_dir), "dim")
        log.info("%s, model %s", what, model)

    def episode_started(self, episode_id: str, task: Task) -> None:
        self.console.print()
        self.console.rule(Text(episode_id, style="bold"), style="bold", align="left")
        if task.query or task.env_type is None:
            self._print_field("query", task.query)
        if task.env_type is not None:
            self._print_field("environment", task.env_type)
        if task.answer is not None:
            self._print_field("reference", task.answer)

    def call_started(self, call: Call, known: int, new_text: str) -> None:
        """`new_text` is what the model reads after the `known` tokens that some earlier call has shown."""
        total = len(call.prompt.ids)
        before = f"{known:,} tokens shown above, then {total - known:,} new" if known else f"{total:,} tokens"
        self._print_heading(f"call {call.number + 1}", f"{_name_agent(call)} reads {before}")
        self._print_text(new_text, "dim")

    def call_done(self, call: Call, answer: Answer, text: str, seconds: float | None = None) -> None:
        """`seconds` that the model took, None where it was not asked just now."""
        count = len(answer.output_ids)
        mean = math.fsum(answer.logprobs) / max(1, count)
        took = "" if seconds is None else f" in {seconds:.2f} s"
        how = f"{took}, mean logprob {mean:.2f}" if answer.excluded != "edited" else " by your hand"
        self._print_heading(f"call {call.number + 1}", f"{_name_agent(call)} writes {count:,} tokens{how}")
        self._print_text(text, "green")
        if answer.finish_reason == "length":
            self._print_line("  cut off: the answer reached its token limit (astune.rollout.max_tokens)", "yellow")
        if answer.unread:
            self._print_line(f"  call marks and no call. {UNREAD}", "yellow")
        if (why_not := call.why_not_trained(answer)) is not None:
            self._print_line(f"  not trained ({why_not}): {LEFT_OUT[why_not]}", "yellow")
        self._print_line(f"  the agent gets {message_in_words(answer.message)}", "dim")

    def episode_done(self, episode: Episode, origin: str) -> None:
        """`origin` is where it was recorded: the file and the number of its line."""
        self._print_heading("end", f"{episode.stop_reason.value}, {episode.metrics['seconds']:.2f} s")
        log.info("%s: %s, reward %s", episode.episode_id, episode.stop_reason.value, episode.reward)
        if episode.output is not None:
            self._print_field("answer", text_of(episode.output.answer))
        self._print_verdict(episode)
        if rewards := describe_rewards(episode):
            self._print_field("rewards", rewards, "bold")
        if episode.error is not None:
            error = episode.error
            log.warning("%s: %s: %s: %s", episode.episode_id, error.stage, error.kind, error.message)
            self._print_field("error", f"{error.stage}: {error.kind}: {error.message}", "red")
            self._print_text(user_traceback(error.traceback), "red")
        if episode.timelines:
            self.console.print(Padding(make_timelines_table(episode.timelines), (1, 0, 0, 2), expand=False))
        self.console.print(Text(localize(f"  recorded in {origin}"), style="dim"), soft_wrap=True)

    def show_replay(self, difference: str | None) -> None:
        """Show the difference of a replay to its recording; None where there is none."""
        if difference is None:
            self._print_line("  replay: equal to the recording in tokens, timelines and verdict", "bold green")
        else:
            self._print_line(f"  replay: not as recorded. {difference}", "bold red")

    def show_branch(self, parent: Episode, branch: Episode) -> None:
        """Show a branch beside the episode that it branches off."""
        self._print_heading("branch", f"{branch.episode_id} beside {parent.episode_id}")
        self.console.print(Padding(make_summary_table([parent, branch]), (0, 0, 0, 2), expand=False))

    def group_done(self, group: Group, samples: Sequence[Sample], model: str = "") -> None:
        """Shows advantages and weights that training would give the attempts at one task, of one of several models."""
        whose = f", of {model}" if model else ""
        self._print_heading("group", f"what a training step of these attempts alone would do{whose}")
        self.console.print(Padding(make_credit_table(group, samples), (0, 0, 0, 2), expand=False))
        for number, episode in enumerate(group.episodes):
            if rewards := describe_rewards(episode):
                self._print_line(f"  attempt {number}: {rewards}", "")
            if episode.verdict is not None and episode.verdict.reason:
                self._print_line(f"  attempt {number}: {episode.verdict.reason}", "dim")
        if samples:
            self.console.print(Padding(make_weights_table(group, samples), (1, 0, 0, 2), expand=False))
        trained = {sample.episode_id for sample in samples}
        left_out = [set(count_left_out(episode, episode.episode_id in trained)) for episode in group.episodes]
        for reason in sorted(set().union(*left_out)):
            self._print_line(f"  {reason}: {LEFT_OUT[reason]}", "yellow")

    def run_finished(self, episodes: Sequence[Episode]) -> None:
        self.console.print()
        self.console.rule(style="bold")
        if episodes:
            self.console.print(make_summary_table(episodes))

    def show_stop(self, title: str) -> None:
        self._print_line(f"── stopped {title}", "bold yellow")

    def tool_result(self, name: str, arguments: str, result: str) -> None:
        self._print_heading("tool", f"{name}({arguments}) gave")
        self._print_text(result, "")

    def note(self, text: str, style: str = "yellow") -> None:
        log.info("%s", text)
        self._print_line(text, style)

    def _print_verdict(self, episode: Episode) -> None:
        verdict = episode.verdict
        if verdict is None:
            none = "none: the episode was not judged and would not be trained on"
            self._print_field("verdict", localize(none), "yellow")
            return
        none = ", undecided" if verdict.undecided else ""
        passed = {True: ", passed", False: ", not passed", None: none}[verdict.passed]
        reason = f": {verdict.reason}" if verdict.reason else ""
        by = f" (by {verdict.judged_by})" if verdict.judged_by else ""
        self._print_field("verdict", f"{localize(f'reward {verdict.reward:g}{passed}')}{reason}{localize(by)}", "bold")

    def _print_heading(self, name: str, facts: str) -> None:
        self.console.print()
        self.console.print(Text.assemble((localize(name), "bold cyan"), "  ", (localize(facts), "dim")))

    def _print_field(self, name: str, value: str, style: str = "") -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=9)
        grid.add_column(overflow="fold")
        grid.add_row(Text(localize(name), style="dim"), Text(value, style=style))
        self.console.print(Padding(grid, (0, 0, 0, 2), expand=False))

    def _print_text(self, text: str, style: str) -> None:
        shown = Text(text.rstrip("\n"), style=style)
        shown.highlight_regex(MARKUP, "not dim magenta")
        print_indented(self.console, shown)

    def _print_line(self, text: str, style: str) -> None:
        self.console.print(Text(localize(text), style=style))


def print_indented(console: Console, text: Text, by: int = 2) -> None:
    """Wrapped lines without blanks behind them, so that they can be copied."""
    for line in text.wrap(console, console.width - by, overflow="fold"):
        line.rstrip()
        console.print(Text.assemble(" " * by, line), soft_wrap=True)


def _name_agent(call: Call) -> str:
    return call.agent if call.source is None else f"{call.agent} (on {call.source})"


def message_in_words(message: Mapping[str, Any]) -> str:
    """The message that an agent gets, in words: reasoning, tool calls, text.

    >>> message_in_words({"content": "Yes."})
    '4 characters of text'
    """
    reasoning, content = message.get("reasoning_content"), message.get("content")
    parts = [f"{_count_characters(reasoning)} of reasoning"] if reasoning else []
    for call in message.get("tool_calls") or ():
        parts.append(f"the call {call['function']['name']}({call['function']['arguments']})")
    parts += [] if content is None else [f"{_count_characters(content)} of text"]
    return ", ".join(parts) or "an empty message"


def _count_characters(text: str) -> str:
    return f"{len(text):,} character{'s' * (len(text) != 1)}"


def shorten_path(path: Path) -> str:
    """Relative to the working directory where that is shorter."""
    relative = os.path.relpath(path)
    return min(relative, str(path), key=len)


def user_traceback(trace: str) -> str:
    """`trace` without ASTune's own frames, behind the line of the user's that it is about."""
    kept, skipping = [], False
    for line in trace.splitlines():
        if line.startswith('  File "'):
            file = Path(line.split('"')[1])
            skipping = part_of_astune(file)
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return own_line_first("\n".join(kept))
