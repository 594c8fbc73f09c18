"""The display of a run under way: bars on a terminal, lines elsewhere, a table at the end.

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
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Literal

from rich.console import RenderableType
from rich.live import Live

from astune.config.schema import Config
from astune.monitor.causes import Cause, Causes
from astune.monitor.printed import EpisodeOutput, episode_output
from astune.monitor.progress_view import RunState, evaluation_facts, final_table, status_panel, step_line
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import show_figure
from astune.support.terminal import Console, Text
from astune.types import Episode, RunReport

ProgressMode = Literal["auto", "bar", "plain", "off"]

QUIET_SECONDS = 15.0
"""Longest time without a line where there are no bars."""
MOST_CAUSES = 10
"""Causes of failure that are shown as they appear, and in the table at the end."""


MANY_CALLS = 8
"""Calls of a tool that all fail before a run says so."""


class Progress:
    """`mode` is `astune.monitor.progress`; auto means bars if `console` is a terminal. Never raises for odd figures,
    nor where the terminal was closed: it then shows nothing more."""

    def __init__(self, mode: ProgressMode, console: Console | None = None) -> None:
        self._console = console or Console()
        self._mode = ("bar" if self._console.is_terminal else "plain") if mode == "auto" else mode
        self._state = RunState()
        self.causes = Causes()
        self._tools: dict[str, tuple[int, int]] = {}
        """Calls and errors by tool."""
        self._shown = ExitStack()
        """The bars, and before them what stands in front of the process's output."""
        self._output: EpisodeOutput | None = None
        self._last_line = time.monotonic()

    def run_started(self, config: Config, run_dir: RunDir, total_steps: int) -> None:
        settings = config.astune
        self._state.total_steps = total_steps
        facts = f" · {settings.backbone} backbone · model {settings.model.path}"
        facts += f" · {total_steps} steps" if total_steps else ""
        self._print(Text.assemble((settings.project_name, "bold"), facts))
        self._print(Text(str(run_dir.path), "dim"))
        if self._mode == "bar":
            live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=4, transient=True)
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
        self._failed(self.causes.add(episode))
        self._tools_failed(episode)
        if time.monotonic() - self._last_line > QUIET_SECONDS:
            self._line(Text(self._state.phase.line(), "dim"))

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        self._state.finish_step(step, metrics)
        self._line(Text.from_markup(step_line(self._state, metrics)))

    def evaluation_done(self, step: int, name: str, metrics: Mapping[str, float]) -> None:
        """`metrics` with or without the prefix `eval/<name>/`."""
        values = {key.rpartition("/")[2]: value for key, value in metrics.items()}
        figure = "success" if "success" in values else "reward"
        shown = show_figure(figure, values[figure]) if figure in values else "of nothing: no episode was judged"
        rest = "".join(f"  {part}" for part in evaluation_facts(figure, values))
        where = f" at step {step:<4} {name:<8} {figure} "
        self._print(Text.assemble(("held-out", "cyan"), where, (shown, "bold"), (rest, "dim")))

    def note(self, text: str) -> None:
        self._print(Text.assemble(("note", "yellow"), f" {text}"))

    def warn(self, text: str) -> None:
        self._print(Text.assemble(("warning", "bold yellow"), f" {text}"))

    def _failed(self, cause: Cause | None) -> None:
        """Tells of a cause when the first episode meets it; the table at the end counts them."""
        if cause is None or len(self.causes.most) > MOST_CAUSES:
            return
        self._print(Text.assemble(("failed", "bold red"), f" {cause.episode_id}: {cause}"))
        if len(self.causes.most) == MOST_CAUSES:
            self.note("other causes of failure are counted, and not shown as they appear any more")

    def _tools_failed(self, episode: Episode) -> None:
        """Tells once of a tool of which every call has failed so far."""
        for name, use in episode.tools.items():
            calls, errors = self._tools.get(name, (0, 0))
            calls, errors = calls + use.calls, errors + use.errors
            self._tools[name] = (calls, errors)
            if errors == calls >= MANY_CALLS > calls - use.calls:
                self.warn(f"all {calls} calls of the tool {name} have failed so far, as here: {use.message:.300}")

    def run_finished(self, report: RunReport) -> None:
        self.close()
        self._print(final_table(report, self.causes.most[:MOST_CAUSES]), soft_wrap=False)

    def close(self) -> None:
        """Takes the bars away. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._shown.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _panel(self) -> RenderableType:
        return status_panel(self._state)

    def _line(self, text: RenderableType) -> None:
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
