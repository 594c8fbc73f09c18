"""Keep an episode as one file, with the configuration it was played with.

    {
     "astune_recording": 2,
     "astune": "0.1.0",
     "timing": {"seconds": 0.81},
     "config": {"astune": {...}},
     "episode": {...}          # as `episodes.episode_to_row` makes it, less what stands in "timing"
    }

Every setting, turn and timeline stands in a line of its own, so that two files can be compared line by line. What
differs from run to run stands in the line "timing" alone: the same episode played twice by the same configuration gives
the same bytes elsewhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha1
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import ValidationError

from astune import __version__
from astune.config.schema import Config
from astune.config.source import read_yaml
from astune.errors import AstuneError, ConfigError, nearest
from astune.monitor.disk import writing
from astune.monitor.episodes import UNREADABLE, EpisodeRecord, episode_from_row, episode_to_row, read_episodes
from astune.monitor.jsonl import plain
from astune.support.file_kinds import Kind, other_kind
from astune.types import Episode, StopReason, Task

FORMAT = 2
"""Of what is written. Those before are read too: in the first, messages stood again in every turn that had them."""
TIMING = ("seconds",)
"""The episode's figures that differ from run to run."""

_OPEN = {(), ("config",), ("config", "astune"), ("episode",), ("episode", "turns"), ("episode", "timelines")}
"""Where each item has a line of its own."""


@dataclass(frozen=True)
class Recording:
    """An episode as it was kept. `config` is None where none was kept with it; `origin` is where it stands: the file,
    and where the file has several the number of the episode, as `train.jsonl#3`."""

    episode: Episode
    step: int
    phase: str
    config: Config | None
    origin: str

    @property
    def record(self) -> EpisodeRecord:
        return EpisodeRecord(self.step, self.phase, self.episode)


def recording_path(run_dir: Path, episode_id: str) -> Path:
    """The file in which a run keeps the recording of an episode, under a name that every system takes.

    >>> recording_path(Path("runs/math/demo"), "debug/t1/0").as_posix()
    'runs/math/demo/recordings/debug_t1_0.json'
    """
    safe = re.sub(r"[^\w.-]", "_", episode_id.replace("/", "_"), flags=re.ASCII)
    if safe != episode_id.replace("/", "_") or len(safe) > 120:
        safe = f"{safe[:120]}_{sha1(episode_id.encode(errors='backslashreplace')).hexdigest()[:8]}"
    return run_dir / "recordings" / f"{safe}.json"


def write_recording(path: Path, episode: Episode, config: Config, *, step: int = 0, phase: str = "debug") -> None:
    """Writes the file in one step: a crash leaves no half of it. Raises RunFolderError."""
    new = path.with_name(path.name + ".new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(recording_bytes(episode, config, step=step, phase=phase))
        os.replace(new, path)


def recording_bytes(episode: Episode, config: Config, *, step: int = 0, phase: str = "debug") -> bytes:
    """The file's content. Equal but for its line "timing" for equal episodes and configurations."""
    row = episode_to_row(EpisodeRecord(step, phase, episode))
    timing = {name: row["metrics"].pop(name) for name in TIMING if name in row["metrics"]}
    head = {"astune_recording": FORMAT, "astune": __version__, "timing": timing}
    value = {**head, "config": plain(config.model_dump(mode="json")), "episode": row}
    return (_layout(value, ()) + "\n").encode("utf-8", errors="backslashreplace")


def _layout(value: Any, place: tuple[str, ...]) -> str:
    """`value` as JSON, one item per line at the places of `_OPEN`."""
    if place not in _OPEN or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    indent = "\n" + " " * (len(place) + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_layout(item, (*place, key))}" for key, item in value.items()]
        return "{" + indent + f",{indent}".join(items) + indent[:-1] + "}"
    return "[" + indent + f",{indent}".join(_layout(item, (*place, "")) for item in value) + indent[:-1] + "]"


def read_recordings(path: Path) -> Iterator[Recording]:
    """The episodes of a recording, of a folder of them, of a run's folder or of an `episodes/*.jsonl` in it. The last
    two have the run's config.yaml. Where a run has recordings they are taken, not its log. `FILE#N` (from 0) and
    `FILE#episode_id` are one episode of a file.

    Raises ConfigError for a path that is not there or has no episodes, AstuneError that says where a file is broken.
    """
    if wrong := other_kind(path, "recorded episodes", Kind.EPISODES, Kind.RECORDING, Kind.RUN, Kind.PLAYED):
        raise ConfigError(wrong)
    if path.is_dir():
        for file in _files(path):
            yield from read_recordings(file)
    elif path.is_file():
        yield from _logged(path) if path.suffix == ".jsonl" else [_read(path)]
    elif "#" in str(path):
        yield _picked(path)
    else:
        raise ConfigError(f"{path}: there is no such file or folder{_neighbour(path)}")


def pick_recording(path: Path) -> Recording:
    """The one episode of `path`. Raises ConfigError where there are several, and says how to choose."""
    found = []
    for recording in read_recordings(path):
        found.append(recording)
        if len(found) == 2:
            first = found[0]
            by_id = "" if path.is_dir() else f" or {path}#{first.episode.episode_id}"
            raise ConfigError(f"{path} has several episodes; choose one, as {first.origin}{by_id}")
    if not found:
        raise ConfigError(f"{path}: no episodes in it")
    return found[0]


def _picked(path: Path) -> Recording:
    text, _, wanted = str(path).partition("#")
    ids = []
    for number, recording in enumerate(read_recordings(Path(text))):
        if wanted in (str(number), recording.episode.episode_id):
            return recording
        ids.append(recording.episode.episode_id)
    raise ConfigError(f"{path}: there is no episode {wanted!r} among the {len(ids)} of {text}.{nearest(wanted, ids)}")


def _files(folder: Path) -> list[Path]:
    """The files with episodes of a folder: its recordings, else those of its run, else the run's log."""
    for pattern in ("recordings/*.json", "*.json", "episodes/*.jsonl", "*.jsonl"):
        if pattern == "*.json" and (folder / "config.yaml").is_file():
            continue  # the folder of a run has other files
        if found := sorted(path for path in folder.glob(pattern) if path.name != "metrics.jsonl"):
            return found
    raise ConfigError(
        f"{folder}: no recorded episodes in it; expected recordings (*.json), a run's folder, or episodes/*.jsonl"
    )


def _neighbour(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"; there is no folder {parent} either"
    return "." + nearest(path.name, [entry.name for entry in parent.iterdir()])


def _logged(path: Path) -> Iterator[Recording]:
    """The episodes of a run's log, with the run's configuration."""
    beside = path.parent.parent / "config.yaml"
    config = _saved_config(beside) if beside.is_file() else None
    for number, record in enumerate(read_episodes(path)):
        yield Recording(record.episode, record.step, record.phase, config, f"{path}#{number}")


def _read(path: Path) -> Recording:
    text, value = _json(path)
    if not isinstance(value, dict) or "astune_recording" not in value:
        raise AstuneError(f"{path}: not a recorded episode: there is no key 'astune_recording' in it")
    if value["astune_recording"] not in range(1, FORMAT + 1):
        raise AstuneError(
            f"{path}: recorded in format {value['astune_recording']!r}; this ASTune reads up to {FORMAT}: update ASTune"
        )
    for key in ("astune", "timing", "config", "episode"):
        if key not in value:
            raise AstuneError(f"{path}: not a whole recording: the key {key!r} is missing")
    for key in ("timing", "config", "episode"):
        if not isinstance(value[key], dict):
            raise AstuneError(f"{path}: {key}: expected an object, found {type(value[key]).__name__}")
    _check_keys(path, text, value["episode"])
    config = _config(value["config"], f"{path} (recorded by ASTune {value['astune']})")
    row = value["episode"]
    try:
        record = episode_from_row({**row, "metrics": {**value["timing"], **row["metrics"]}})
    except UNREADABLE as error:
        raise AstuneError(f"{path}: not an episode ({type(error).__name__}: {error})") from error
    return Recording(record.episode, record.step, record.phase, config, str(path))


def _json(path: Path) -> tuple[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8")
        return text, json.loads(text)
    except UnicodeDecodeError as error:
        raise AstuneError(f"{path}: not UTF-8 text at byte {error.start}: cut off, or no recording") from error
    except json.JSONDecodeError as error:
        raise AstuneError(f"{path}, line {error.lineno}: not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise AstuneError(f"{path}: not JSON that can be read ({error})") from error


def _saved_config(path: Path) -> Config:
    """The configuration as `save_config` wrote it, whether or not it could still be run."""
    layer = read_yaml(path)
    if layer.problems:
        raise AstuneError(layer.problems[0])
    return _config(OmegaConf.to_container(OmegaConf.create(layer.values), resolve=True), str(path))


def _config(values: Any, origin: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(map(str, wrong["loc"]))
        raise AstuneError(f"{origin}: config: {key}: {wrong['msg']}; found {wrong['input']!r:.100}") from error


_EMPTY = episode_to_row(EpisodeRecord(0, "", Episode("", Task("", ""), (), (), StopReason.COMPLETED)))
_TURN = ("agent", "messages", "response", "finish_reason", "policy_version", "temperature", "excluded")
_NEEDED = {"turns": _TURN, "timelines": ("agent", "fork", "tokens_kept", "token_ids", "spans")}


def _check_keys(path: Path, text: str, row: Mapping[str, Any]) -> None:
    """Names the first key that is missing, and the line of the turn or timeline that misses it."""
    for key in _EMPTY:
        if key not in row:
            raise AstuneError(f"{path}: not a whole recording: the episode has no {key!r}")
    for name, needed in _NEEDED.items():
        if not isinstance(row[name], list):
            raise AstuneError(f"{path}: episode: {name}: expected a list, found {type(row[name]).__name__}")
        for number, item in enumerate(row[name]):
            missing = [key for key in needed if not isinstance(item, dict) or key not in item]
            if missing:
                raise AstuneError(f"{path}{_line(text, item)}: {name}[{number}] has no {missing[0]!r}")


def _line(text: str, item: Any) -> str:
    """`, line N` of the line that holds `item` alone, if one does."""
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if json.loads(line.strip().removesuffix(",")) == item:
                return f", line {number}"
        except ValueError:
            continue
    return ""


def without_timing(episode: Episode) -> Episode:
    """The episode less what differs from run to run: seconds, and the traceback of its error."""
    metrics = {name: value for name, value in episode.metrics.items() if name not in TIMING}
    error = None if episode.error is None else replace(episode.error, traceback="")
    return replace(episode, metrics=metrics, error=error)
