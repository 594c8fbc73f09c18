"""Read recorded episodes: the lines of a run's `episodes/*.jsonl`, each with the configuration of its run.

    for recording in read_recordings(Path("runs/math/demo-debug")):
        print(recording.origin, recording.episode.reward)      # .../episodes/debug.jsonl#0 1.0

Older debug runs kept each episode in a JSON file of its own, with the configuration in it; such files are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import ValidationError

from astune.config.schema import Config
from astune.config.source import read_yaml
from astune.errors import AstuneError, ConfigError, nearest
from astune.monitor.episodes import UNREADABLE, EpisodeRecord, episode_from_row, read_episodes
from astune.support.file_kinds import Kind, other_kind


@dataclass(frozen=True)
class Recording(EpisodeRecord):
    """An episode as it was kept. `config` is None where none was kept with it; `origin` is where it stands: the file
    and the number of its line, as `train.jsonl#3`."""

    config: Config | None
    origin: str


def read_recordings(path: Path) -> Iterator[Recording]:
    """The episodes of a run's folder, of an `episodes/*.jsonl`, or of a folder of such files. They have the
    configuration of the config.yaml beside the file, or one folder up. `FILE#N` (from 0) and `FILE#episode_id` are one
    episode of a file.

    Raises ConfigError for a path that is not there or has no episodes, AstuneError that says where a file is broken.
    """
    if wrong := other_kind(path, "recorded episodes", Kind.EPISODES, Kind.RECORDING, Kind.RUN, Kind.PLAYED):
        raise ConfigError(wrong)
    if path.is_dir():
        for file in _list_files(path):
            yield from read_recordings(file)
    elif path.is_file():
        yield from _read_log(path) if path.suffix == ".jsonl" else [_read_single(path)]
    elif "#" in str(path):
        yield _pick(path)
    else:
        raise ConfigError(f"{path}: there is no such file or folder{_name_neighbour(path)}")


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


def _pick(path: Path) -> Recording:
    text, _, wanted = str(path).partition("#")
    ids = []
    for number, recording in enumerate(read_recordings(Path(text))):
        if wanted in (str(number), recording.episode.episode_id):
            return recording
        ids.append(recording.episode.episode_id)
    raise ConfigError(f"{path}: there is no episode {wanted!r} among the {len(ids)} of {text}.{nearest(wanted, ids)}")


def _list_files(folder: Path) -> list[Path]:
    """The files with episodes of a folder: its run's log, else the logs in it, else older recordings."""
    for pattern in ("episodes/*.jsonl", "*.jsonl", "recordings/*.json", "*.json"):
        if pattern == "*.json" and (folder / "config.yaml").is_file():
            continue  # the folder of a run has other files
        if found := sorted(path for path in folder.glob(pattern) if path.name != "metrics.jsonl"):
            return found
    raise ConfigError(f"{folder}: no recorded episodes in it; expected a run's folder, or files as episodes/*.jsonl")


def _name_neighbour(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"; there is no folder {parent} either"
    return "." + nearest(path.name, [entry.name for entry in parent.iterdir()])


def _read_log(path: Path) -> Iterator[Recording]:
    beside = [folder / "config.yaml" for folder in (path.parent, path.parent.parent)]
    config = next((_read_config(file) for file in beside if file.is_file()), None)
    for number, record in enumerate(read_episodes(path)):
        yield Recording(**vars(record), config=config, origin=f"{path}#{number}")


def _read_config(path: Path) -> Config:
    """The configuration as `save_config` wrote it, whether or not it could still be run."""
    layer = read_yaml(path)
    if layer.problems:
        raise AstuneError(layer.problems[0])
    return _check_config(OmegaConf.to_container(OmegaConf.create(layer.values), resolve=True), path)


def _check_config(values: Any, origin: Path) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(map(str, wrong["loc"]))
        raise AstuneError(f"{origin}: config: {key}: {wrong['msg']}; found {wrong['input']!r:.100}") from error


def _read_single(path: Path) -> Recording:
    """Read the file of one episode that an older debug run kept: a line of a log, less the seconds that stand in
    `timing`, beside the configuration."""
    try:
        kept = json.loads(path.read_bytes())
        row = kept["episode"]
        record = episode_from_row({**row, "metrics": {**kept["timing"], **row["metrics"]}})
        values = kept["config"]
    except (*UNREADABLE, RecursionError) as error:
        raise AstuneError(f"{path}: not a recorded episode ({type(error).__name__}: {error})") from error
    return Recording(**vars(record), config=_check_config(values, path), origin=str(path))
