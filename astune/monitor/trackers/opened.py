"""The trackers of one run: each on a thread of its own, none of which can stop or delay the run."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from astune.config.keys import LEAVES, value_at
from astune.config.monitor import PLACES, TRACKERS, MonitorConfig, name_of_tracker
from astune.config.schema import Config
from astune.errors import MissingDependency, PluginError, name_error
from astune.monitor.disk import write_whole
from astune.monitor.run_dir import RunDir
from astune.monitor.trackers.tracker import ShownEpisode, TrackedRun, Tracker
from astune.plugins import load_plugin
from astune.types import Episode

logger = logging.getLogger(__name__)

KEPT_IDS = "trackers.json"
"""File of a run folder: the id that each tracker gave the run."""
LONGEST_FINISH = 60.0
"""Seconds that a run waits for a tracker at its end."""
PRIVATE = frozenset({"astune.monitor.store", "astune.online.store"})
"""Keys that no tracker is told: addresses of databases may hold a password."""


def load_trackers(config: MonitorConfig) -> dict[str, Tracker]:
    """Load the trackers that the configuration names, by name; nothing is started. Raises MissingDependency where a
    package is not installed, and PluginError."""
    return {name_of_tracker(spec): _load(spec, config) for spec in config.trackers}


def _load(spec: str, config: MonitorConfig) -> Tracker:
    builtin = TRACKERS.get(name_of_tracker(spec))
    if builtin is not None:
        found = find_spec(builtin.package)
        if found is None or found.origin is None:  # a folder of that name is no package
            install = f"'astune[{builtin.extra}]'" if builtin.extra else builtin.package
            raise MissingDependency(
                f"astune.monitor.trackers: {name_of_tracker(spec)!r} needs the package {builtin.package}: "
                f"pip install {install}, or take it out of the list"
            )
    kind = load_plugin(spec, kind="tracker", builtin=PLACES)
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        raise PluginError(f"tracker {spec!r}: expected a class derived from astune.monitor.trackers.Tracker")
    return kind(config)


def open_trackers(
    loaded: Mapping[str, Tracker], config: Config, run_dir: RunDir, warn: Callable[[str], None]
) -> Trackers:
    """Start the trackers of a run, or go on in the same runs there. `warn` is told, once, of each that fails."""
    keys = {key: value_at(config, key) for key in LEAVES if key not in PRIVATE}
    default = Config()
    told = {key: value for key, value in keys.items() if value != value_at(default, key)}
    ids = _KeptIds(run_dir.path / KEPT_IDS)
    opened = []
    for name, tracker in loaded.items():
        run = TrackedRun(config.astune.project_name, run_dir.path.name, run_dir.path, told, ids.of(name))
        opened.append(_Opened(name, tracker, run, ids))
    return Trackers(opened, warn, config.astune.monitor.tracker_episodes)


class Trackers:
    """What every tracker of a run is told. No call waits, but for those that write files here."""

    def __init__(self, opened: Sequence[_Opened], warn: Callable[[str], None], most_episodes: int = 0) -> None:
        self._opened, self._warn, self._most = opened, warn, most_episodes

    def log(self, step: int, values: Mapping[str, float], now: float) -> None:
        self._tell("log", step, dict(values), now)

    def go_back(self, step: int) -> None:
        self._tell("go_back", step)

    def show(self, step: int, phase: str, episodes: Sequence[Episode]) -> None:
        """Show the first of `episodes`, as many as `astune.monitor.tracker_episodes` says."""
        if self._most and self._opened:
            self._tell("show", step, phase, [ShownEpisode.of(episode) for episode in episodes[: self._most]])

    def finish(self, status: str) -> None:
        """End the runs there; safe to call twice. Waits for what is on its way for `LONGEST_FINISH` at most."""
        self._tell("finish", status)
        until = time.monotonic() + LONGEST_FINISH
        for one in self._opened:
            one.wait(max(0.0, until - time.monotonic()))
        self._say()
        self._opened = ()

    def _tell(self, what: str, *told: Any) -> None:
        for one in self._opened:
            one.call(what, *told)
        self._say()

    def _say(self) -> None:
        for one in self._opened:
            if text := one.take_failure():
                self._warn(text)


NO_TRACKERS = Trackers((), logger.warning)


class _Opened:
    """One tracker, what is on its way to it, and its first failure."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, ids: _KeptIds) -> None:
        self._name, self._tracker, self._run, self._ids = name, tracker, run, ids
        self._runs, self._told = True, False
        self._failure: str | None = None
        self._calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self._thread = None
        if tracker.in_place:
            self._do("start")
        else:  # a daemon: a network that hangs does not keep the process from ending
            self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
            self._thread.start()

    def call(self, what: str, *told: Any) -> None:
        if self._thread is None:
            self._do(what, *told)
        else:
            self._calls.put((what, told))

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._fail(f"had not finished after {LONGEST_FINISH:.0f} s")

    def take_failure(self) -> str | None:
        """The first failure, the first time that this is asked after it."""
        if self._told or self._failure is None:
            return None
        self._told = True
        return self._failure

    def _work(self) -> None:
        self._do("start")
        what = ""
        while what != "finish":
            what, told = self._calls.get()
            self._do(what, *told)

    def _do(self, what: str, *told: Any) -> None:
        if not self._runs:
            return
        try:
            if what == "start":
                self._ids.keep(self._name, self._tracker.start(self._run))
            else:
                getattr(self._tracker, what)(*told)
        except (Exception, SystemExit) as error:
            self._runs = what != "start"
            self._fail(f"{what} failed ({name_error(error):.500})")

    def _fail(self, what: str) -> None:
        rest = "what it did not take is in metrics.jsonl alone" if self._runs else "nothing goes there"
        self._failure = self._failure or f"tracker {self._name!r}: {what}. The run goes on; {rest}"


class _KeptIds:
    """The file that keeps the ids; the threads share it."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            self._ids: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError:  # it is written whole, so somebody else wrote it; the runs there begin anew
            self._ids = {}

    def of(self, name: str) -> str | None:
        return self._ids.get(name)

    def keep(self, name: str, run_id: str | None) -> None:
        with self._lock:
            if run_id is not None and self._ids.get(name) != run_id:
                self._ids[name] = run_id
                write_whole(self._path, json.dumps(self._ids, indent=2) + "\n")
