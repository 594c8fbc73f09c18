"""`astune.Run`: what a run left in its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from astune.config.load import load_config
from astune.errors import ConfigError
from astune.monitor.checkpoint_names import find_checkpoint
from astune.monitor.episodes import EpisodeRecord, episodes_path, read_episodes
from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import Metrics
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import show_figure, show_interval, summarize
from astune.viewer import curve_svg, write_report
from astune.viewer.page import check_run

OUTCOME = "the run is over: %s after step %s"
"""The record in `run.log` from which a run that is opened later knows its end."""


class Curve(str):
    """A picture as SVG, which a notebook shows."""

    def _repr_svg_(self) -> str:
        return str(self)


class Run:
    """A run, at its end or opened from its folder later; it is read anew whenever it is asked.

    >>> Run("runs/math/none")
    Traceback (most recent call last):
    astune.errors.ConfigError: runs/math/none: there is no such folder; expected the folder of a run, ...
    """

    def __init__(self, folder: str | PathLike[str], outcome: str | None = None) -> None:
        """`outcome` is what it is known to be; None: what its log says."""
        self.folder = Path(folder).expanduser()
        check_run(self.folder)
        self._outcome = outcome
        self._dir = RunDir(self.folder.absolute())

    @property
    def outcome(self) -> str:
        """The end of it: "completed", "learned_nothing", "interrupted" or "failed"; "unfinished" where it goes on, or
        was killed."""
        if self._outcome is not None:
            return self._outcome
        path = self._dir.path / "run.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        ends = re.findall(OUTCOME % (r"(\w+)", r"(\d+)"), text)
        return str(ends[-1][0]) if ends and int(ends[-1][1]) == self.steps else "unfinished"

    @property
    def steps(self) -> int:
        """Steps that were done."""
        return max((int(row["step"]) for row in self.metrics), default=0)

    @property
    def metrics(self) -> Metrics:
        """The figures of each step, and of the evaluation before the first one, as dicts; `step` is in each."""
        return read_metrics(self._dir.metrics_path) if self._dir.metrics_path.is_file() else []

    @property
    def held_out(self) -> Mapping[str, Any]:
        """For each evaluation, as "greedy", its `figure` and the `first`, `last` and `best` value, each with its
        step, its interval and the number of tasks. Empty where nothing was held out."""
        found: Mapping[str, Any] = summarize(self.metrics)["held_out"]
        return found

    @property
    def report(self) -> Path:
        """The page about it, written anew if it is not there."""
        return self._dir.report_path if self._dir.report_path.is_file() else write_report(self.folder)

    @property
    def model(self) -> Path:
        """The trained model as a folder that transformers and vLLM load, an adapter merged into its base: the best by
        `astune.trainer.keep_best`, else the newest. It is written when it is first asked for.

        Raises `ConfigError` where the run has no checkpoint.
        """
        keeps_best = load_config(self._dir.config_path, for_run=False).config.astune.trainer.keep_best
        checkpoint = find_checkpoint(f"{self.folder}@best" if keeps_best else str(self.folder))
        if checkpoint is None:
            raise ConfigError(f"{self.folder}: it has no checkpoint (astune.trainer.save_every)")
        out = self.folder / "model" / f"{self.folder.name}_{checkpoint.name}"
        if not out.is_dir():
            from astune.backbone.local.export import export_checkpoint

            export_checkpoint(checkpoint, out, merged=True)
        return out

    def episodes(self, phase: str = "train") -> Iterator[EpisodeRecord]:
        """The episodes of "train", "eval/greedy" and so on with their steps, in the order in which they ended, one in
        memory at a time. Raises `ConfigError` that lists the phases that there are."""
        path = episodes_path(self._dir.episodes_dir, phase)
        if not path.is_file():
            known = sorted(
                each.stem.replace("_", "/", each.stem.startswith("eval")) for each in path.parent.glob("*.jsonl")
            )
            raise ConfigError(
                f"{self.folder}: no episodes of {phase!r}; there are those of {', '.join(known) or 'none'}"
            )
        return read_episodes(path)

    def plot(self) -> Curve:
        """The curve of training and held-out tasks as SVG, as in the report; `Path("x.svg").write_text` keeps it."""
        return Curve(curve_svg(self.metrics))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}): {self.outcome} after {self.steps} steps"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._table())
        head = "<tr><th>held-out</th><th>figure</th><th>first</th><th>last</th></tr>"
        table = f"<table>{head}{rows}</table>" if rows else "<p>no held-out tasks were evaluated</p>"
        return f"<p><b>{escape(repr(self))}</b></p>{table}{self.plot() if self.metrics else ''}"

    def _table(self) -> Iterator[Sequence[str]]:
        for name, found in self.held_out.items():
            figure = found["figure"]
            yield name, figure, *(_show(figure, found[end]) for end in ("first", "last"))


def _show(figure: str, point: Mapping[str, Any]) -> str:
    between = f" ({show_interval(figure, point['low'], point['high'])})" if point.get("low") is not None else ""
    return f"{show_figure(figure, point['value'])}{between} at step {point['step']}"
