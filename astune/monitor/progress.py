"""The display of a run under way: bars on a terminal, lines elsewhere, a table at the end; and a look at each step that
warns where a run goes on though it learns nothing.

with Progress("auto") as progress:
    progress.run_started(config, run_dir, total_steps=60)
    progress.phase_started("rollout", total_episodes=64)
    progress.episode_done(episode)
    progress.step_done(1, {"reward/mean": 0.25, "time/step": 4.2})
    progress.run_finished(report)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Literal

from rich.console import RenderableType
from rich.live import Live

from astune.config.schema import Config
from astune.errors import TrainingError
from astune.monitor.causes import Cause, Causes
from astune.monitor.nothing_learned import UNJUDGED, why_nothing
from astune.monitor.printed import EpisodeOutput, episode_output
from astune.monitor.progress_view import RunState, evaluation_facts, final_table, status_panel, step_line
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import show_figure
from astune.monitor.tool_failures import MANY_CALLS, ToolFailures
from astune.support.chinese import localize
from astune.support.run_log import file_logger
from astune.support.terminal import Console, Text
from astune.types import Episode, RunReport

log = file_logger(__name__)

ProgressMode = Literal["auto", "bar", "plain", "off"]

QUIET_SECONDS = 15.0
"""Longest time without a line where there are no bars."""
MOST_CAUSES = 10
"""Causes of failure that are shown as they appear, and in the table at the end."""
PATIENCE = 3
"""Steps in a row without anything learned after which a run says so."""
UNREAD_SHARE = 0.1
"""Part of the answers that meant to call a tool, of which no call could be read, that a run tells of, where these are
at least `MANY_CALLS`."""


class Progress:
    """`mode` is `astune.monitor.progress`; auto means bars if `console` is a terminal. Never raises for odd figures,
    nor where the terminal was closed: it then shows nothing more."""

    def __init__(self, mode: ProgressMode, console: Console | None = None) -> None:
        self._console = console or Console()
        self._mode = ("bar" if self._console.is_terminal else "plain") if mode == "auto" else mode
        self._state = RunState()
        self.causes = Causes()
        self.tools = ToolFailures()
        self._unread, self._calling = 0, 0
        """Answers with call marks and no call, and those with calls."""
        self._told_of_unread = False
        self._shown = ExitStack()
        """The bars, and before them what stands in front of the process's output."""
        self._output: EpisodeOutput | None = None
        self._last_line = time.monotonic()

    def run_started(self, config: Config, run_dir: RunDir, total_steps: int) -> None:
        settings = config.astune
        self._state.total_steps = total_steps
        facts = f" · {settings.backbone} backbone · model {settings.model.path}"
        facts += f" · {total_steps} steps" if total_steps else ""
        self._print(Text.assemble((settings.project_name, "bold"), localize(facts)))
        self._print(Text(str(run_dir.path), "dim"))
        log.info("%s%s", settings.project_name, facts)
        if self._mode == "bar":
            live = Live(
                get_renderable=lambda: status_panel(self._state),
                console=self._console,
                refresh_per_second=4,
                transient=True,
            )
            self._shown.enter_context(live)
        self._output = self._shown.enter_context(episode_output())

    def phase_started(self, name: str, total_episodes: int, done: int = 0) -> None:
        """`name` is what is going on: "rollout", "train", "evaluation, greedy"; 0 episodes if it plays none. So many of
        them are done already."""
        self._state.start_phase(name, total_episodes, done)

    def episode_done(self, episode: Episode, *, ahead: bool = False) -> None:
        """`ahead`: it is not one of the phase that is shown."""
        if self._output is not None:
            self._output.end(episode.episode_id)
        if not ahead:
            self._state.add(episode)
        log.debug("%s: %s, reward %s", episode.episode_id, episode.stop_reason.value, episode.reward)
        self._tell_failure(self.causes.add(episode))
        self._warn(self.tools.add(episode))
        self._calls_unread(episode)
        if time.monotonic() - self._last_line > QUIET_SECONDS:
            self._print_line(Text(localize(self._state.phase.line()), "dim"))

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        self._state.finish_step(step, metrics)
        line = step_line(self._state, metrics)
        log.info("%s", Text.from_markup(line).plain)
        self._print_line(Text.from_markup(localize(line)))
        self._warn(self.tools.end_phase())

    def evaluation_done(self, step: int, name: str, metrics: Mapping[str, float]) -> None:
        """`metrics` with or without the prefix `eval/<name>/`."""
        values = {key.removeprefix(f"eval/{name}/"): value for key, value in metrics.items()}
        figure = "success" if "success" in values else "reward"
        value = show_figure(figure, values[figure]) if figure in values else "of nothing: no episode was judged"
        rest = "".join(f"  {part}" for part in evaluation_facts(figure, values))
        where = f" at step {step:<4} {name:<8} {figure} "
        shown = (
            (localize("held-out"), "cyan"),
            localize(where.rstrip()),
            " ",
            (localize(value), "bold"),
            (localize(rest), "dim"),
        )
        self._print(Text.assemble(*shown))
        log.info("held-out%s%s%s", where, value, rest)
        self._warn(self.tools.end_phase(name))

    def _warn(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            self.warn(warning)

    def note(self, text: str) -> None:
        log.info("%s", text)
        self._print(Text.assemble((localize("note"), "yellow"), f" {localize(text)}"))

    def warn(self, text: str) -> None:
        log.warning("%s", text)
        self._print(Text.assemble((localize("warning"), "bold yellow"), f" {localize(text)}"))

    def _tell_failure(self, cause: Cause | None) -> None:
        """Tells of a cause when the first episode meets it; the table at the end counts them."""
        if cause is None or len(self.causes.most) > MOST_CAUSES:
            return
        log.warning("%s: %s", cause.episode_id, cause)
        self._print(Text.assemble((localize("failed"), "bold red"), f" {cause.episode_id}: {localize(str(cause))}"))
        if len(self.causes.most) == MOST_CAUSES:
            self.note("other causes of failure are counted, and not shown as they appear any more")

    def _calls_unread(self, episode: Episode) -> None:
        """Tells once of answers with call marks and no call, when there are many beside those with calls."""
        unread = [turn for turn in episode.turns if turn.unread]
        self._unread += len(unread)
        self._calling += sum(bool(turn.response.get("tool_calls")) for turn in episode.turns)
        often = self._unread >= max(MANY_CALLS, UNREAD_SHARE * (self._unread + self._calling))
        if unread and often and not self._told_of_unread:
            self._told_of_unread = True
            said = unread[-1].response.get("content") or unread[-1].response.get("reasoning_content")
            self.warn(
                f"{self._unread} of {self._unread + self._calling} answers that meant to call a tool have call marks "
                f"and no call, so the agent got text, as here: {said!r:.300}. See docs/zero_reward.md"
            )

    def run_finished(self, report: RunReport) -> None:
        self.close()
        log.info("%s after step %d", report.status, report.steps)
        self._print(final_table(report, self.causes.most[:MOST_CAUSES]), soft_wrap=False)

    def close(self) -> None:
        """Takes the bars away. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._shown.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _print_line(self, text: RenderableType) -> None:
        if self._mode == "plain":
            self._print(text)

    def _print(self, text: RenderableType, *, soft_wrap: bool = True) -> None:
        self._last_line = time.monotonic()
        if self._mode == "off":
            return
        try:
            self._console.print(text, soft_wrap=soft_wrap)
        except OSError:
            self._mode = "off"


class Learning:
    """Looks at each step of a run as it ends.

    learning.step_done(metrics)      # notes on the progress display why nothing is learned, or stops the run
    """

    def __init__(self, progress: Progress, max_unjudged_steps: int, max_failed_tool_steps: int = 0) -> None:
        """The limits are those of `astune.trainer`; 0 never stops."""
        self._progress, self._most, self._most_of_tools = progress, max_unjudged_steps, max_failed_tool_steps
        self._in_a_row = self._unjudged_in_a_row = 0

    def step_done(self, metrics: Mapping[str, float]) -> None:
        """Raises TrainingError after `max_unjudged_steps` in a row without a verdict, and after
        `max_failed_tool_steps` in which every call of a tool failed."""
        why = why_nothing(metrics)
        self._in_a_row = 0 if why is None else self._in_a_row + 1
        self._unjudged_in_a_row = self._unjudged_in_a_row + 1 if why is UNJUDGED else 0
        if self._unjudged_in_a_row == self._most > 0:
            most = self._progress.causes.most
            raise TrainingError(
                f"nothing could be judged in {self._most} steps in a row (astune.trainer.max_unjudged_steps)"
                f"{f'; most often {most[0][0]}' if most else ''}"
            )
        tools = self._progress.tools
        for name, steps in tools.steps.items():
            if steps >= self._most_of_tools > 0:
                raise TrainingError(
                    f"every call of the tool {name} failed in {steps} steps in a row "
                    f"(astune.trainer.max_failed_tool_steps), the first with: {tools.first_failure(name)}"
                )
        if why is not None and self._in_a_row == PATIENCE:
            self._progress.warn(f"nothing was learned in the last {PATIENCE} steps: {why}")
