"""Play recorded episodes again, judge them anew and compare them: `astune replay`, `astune rescore`, `astune diff`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from astune.backbone.base import BACKBONES
from astune.cli.progress_bar import progress_bar
from astune.cli.run import EXIT_CODES
from astune.config.clock import at_clock
from astune.config.load import LoadedConfig, load_config
from astune.config.render import save_config
from astune.config.rules.beside import NO_RECORDING
from astune.config.schema import AstuneConfig, DebugConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError
from astune.monitor.episode_filter import parse_filter
from astune.plugins import load_plugin
from astune.recordings.diff import Decode, Difference, first_difference
from astune.recordings.recording import Recording, pick_recording, read_recordings
from astune.rollout.setup import RolloutSetup
from astune.support.terminal import Console
from astune.support.visible import tell
from astune.training.rollout_setup import NoPolicy, environment_service, rollout_setup
from astune.types import Episode

NO_LIMIT = 2**20
"""Context length of a model that does not say how much it was made for."""


def replay(files: Sequence[Path], conf: Path | None, overrides: Sequence[str], options: Mapping[str, object]) -> int:
    """Runs recorded episodes again, with the recorded answers of the model. 1 if one of them differs.

    With --step or --commands the debugger does, and stops on the way.
    """
    if options.get("astune.debug.step") or options.get("astune.debug.commands"):
        return _step(files, conf, overrides, options)
    chosen = select(files, options.get("astune.debug.filter"))
    return asyncio.run(_replay_all(chosen, _Configs(conf, overrides)))


def rescore(
    files: Sequence[Path],
    judge: str,
    conf: Path | None,
    overrides: Sequence[str],
    filter_text: str | None,
    out: Path | None,
) -> int:
    """Judges recorded episodes with another judge. 1 if it could not judge one of them."""
    from astune.cli.episodes.rescore import rescore_all

    configs = _Configs(conf, overrides, {"astune.task_judge.judge_protocol": judge})
    return asyncio.run(rescore_all(select(files, filter_text), configs.of, out))


def diff(first: Path, second: Path) -> int:
    """Shows the first point where two episodes part. 0 if there is none."""
    one, two = pick_recording(first), pick_recording(second)
    for name, recording in (("A", one), ("B", two)):
        tell(f"{name}  {recording.origin}  {_outline(recording.episode)}")
    difference = first_difference(one.episode, two.episode, _decode(one))
    if difference is None:
        tell("equal: task, tokens, timelines, output and verdict")
        return 0
    tell(f"\nthey part at {difference.place}")
    for name, text in (("A", difference.first), ("B", difference.second)):
        tell(f"  {name}  {text}")
    tell("\nfrom there on")
    for name, recording in (("A", one), ("B", two)):
        tell(f"  {name}  {_afterwards(recording.episode, difference)}")
    return 1


def select(files: Sequence[Path], filter_text: object) -> Iterator[Recording]:
    """The recorded episodes of all files that pass the filter. Raises ConfigError where none does."""
    keep = parse_filter(str(filter_text)) if filter_text is not None else None
    if not files:
        raise ConfigError("name a recorded episode, a folder of them, or the folder of a run")
    seen = found = 0
    for file in files:
        for recording in read_recordings(file):
            seen += 1
            if keep is None or keep(recording):
                found += 1
                yield recording
    if not found:
        what = "no episode was recorded" if not seen else f"of {seen} recorded none passes {filter_text!r}"
        raise ConfigError(f"{', '.join(map(str, files))}: {what}")


@dataclass
class _Configs:
    """The configuration that each recording is to be run with: its own or `conf`, with the overrides on top, and with
    its clock unless that gives another."""

    conf: Path | None
    overrides: Sequence[str]
    options: Mapping[str, object] = field(default_factory=dict)
    _loaded: dict[tuple[str, datetime | None], AstuneConfig] = field(default_factory=dict)

    def of(self, recording: Recording) -> AstuneConfig:
        kept = recording.config
        own = "" if self.conf is not None or kept is None else kept.model_dump_json()
        clock = None if kept is None else kept.astune.model.clock
        if (own, clock) not in self._loaded or (not own and self.conf is None):
            config = self.load(recording).config.astune
            self._loaded[own, clock] = config if clock is None else at_clock(config, clock)
        return self._loaded[own, clock]

    def load(self, recording: Recording, model: str | None = None) -> LoadedConfig:
        """Raises ConfigError where there is no configuration, or where it is wrong."""
        unused = {f"astune.debug.{name}": getattr(DebugConfig(), name) for name in NO_RECORDING}
        options = {**unused, **self.options, "astune.debug.model": model or f"replay:{recording.origin}"}
        if self.conf is not None:
            return load_config(self.conf, self.overrides, backbone="debug", options=options)
        with _as_file(recording) as path:
            try:
                return load_config(path, self.overrides, backbone="debug", options=options)
            except ConfigError as error:
                text = str(error).replace(f"{path}:", f"{recording.origin}, config, line ")
                raise ConfigError(text.replace(str(path), f"{recording.origin}, config")) from error


@contextmanager
def _as_file(recording: Recording) -> Iterator[Path]:
    """The configuration of the recording as a file."""
    if recording.config is None:
        raise ConfigError(
            f"{recording.origin}: no configuration was kept with it (there is no config.yaml in the run's folder); "
            "give one with --conf"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        save_config(recording.config, path)
        yield path


def _step(files: Sequence[Path], conf: Path | None, overrides: Sequence[str], options: Mapping[str, object]) -> int:
    """Hands over to the debugger."""
    if len(files) != 1:
        raise ConfigError(f"--step plays one file or folder, got {len(files)}")
    recording = next(select(files, options.get("astune.debug.filter")))
    loaded = _Configs(conf, overrides, options).load(recording, f"replay:{files[0]}")
    backbone = load_plugin("debug", kind="backbone", builtin=BACKBONES)()
    return EXIT_CODES[backbone.run(loaded).status]


async def _setup(config: AstuneConfig, stack: AsyncExitStack) -> RolloutSetup:
    """The setup for episodes of one configuration. The environment service that it says to start, and what the
    workflow sets up, live until `stack` is closed."""
    config = stack.enter_context(environment_service(config))
    model = config.model
    chat_format = load_chat_format(model, resolve_base_dir(model.path, weights=False))
    context_length = model.max_model_len or chat_format.context_length or NO_LIMIT
    setup = rollout_setup(_without_keys(config), NoPolicy(context_length), chat_format)
    await stack.enter_async_context(setup.share())
    return setup


def _without_keys(config: AstuneConfig) -> AstuneConfig:
    """Auxiliary models and models that judge are not called in a replay, so nobody needs to have their keys."""
    no_key = {"api_key_env": None}
    models = {name: model.model_copy(update=no_key) for name, model in config.rollout.auxiliary_models.items()}
    rollout = config.rollout.model_copy(update={"auxiliary_models": models})
    judges = tuple(model.model_copy(update=no_key) for model in config.task_judge.llm.models)
    llm = config.task_judge.llm.model_copy(update={"models": judges})
    judge = config.task_judge.model_copy(update={"llm": llm})
    return config.model_copy(update={"rollout": rollout, "task_judge": judge})


async def _replay_all(recordings: Iterator[Recording], configs: _Configs) -> int:
    from astune.recordings.replay import replay_recording

    console = Console(soft_wrap=True)
    setups: dict[int, RolloutSetup] = {}
    equal = different = 0
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(progress_bar(console))
        bar = progress.add_task("replaying", total=None)
        for recording in recordings:
            config = configs.of(recording)
            if id(config) not in setups:
                setups[id(config)] = await _setup(config, stack)
            difference = await replay_recording(recording, setups[id(config)], config)
            equal, different = equal + (difference is None), different + (difference is not None)
            console.print(_replay_line(recording.episode, difference))
            progress.advance(bar)
    console.print(f"{equal + different} replayed: {equal} equal, {different} different")
    return 1 if different else 0


def _replay_line(episode: Episode, difference: str | None) -> str:
    if difference is None:
        return f"equal    {episode.episode_id}  {_outline(episode)}"
    return f"DIFFERS  {episode.episode_id}  {difference}"


def _outline(episode: Episode) -> str:
    return f"{_amount(episode, 0)}, {_end(episode)}"


def _afterwards(episode: Episode, difference: Difference) -> str:
    start = len(episode.turns) if difference.turn is None else difference.turn
    return f"{_amount(episode, start)}, {_end(episode)}"


def _amount(episode: Episode, start: int) -> str:
    turns = episode.turns[start:]
    tokens = sum(len(turn.output_ids) for turn in turns)
    return f"{len(turns)} turn{'s' * (len(turns) != 1)}, {tokens} tokens"


def _end(episode: Episode) -> str:
    reward = "no verdict" if episode.reward is None else f"reward {episode.reward:g}"
    error = "" if episode.error is None else f" ({episode.error.stage}: {episode.error.kind})"
    return f"{episode.stop_reason.value}{error}, {reward}"


def _decode(recording: Recording) -> Decode | None:
    """Tokens as text, where the tokenizer of the model is on this machine."""
    if recording.config is None:
        return None
    model = recording.config.astune.model
    if any(own.path is not None for own in recording.config.astune.models.values()):
        return None  # ids alone, which are of several
    if model.path != "tiny" and not Path(model.path).is_dir():
        from huggingface_hub import try_to_load_from_cache

        if model.path.count("/") != 1 or not isinstance(try_to_load_from_cache(model.path, "tokenizer.json"), str):
            return None
    return ChatFormat.load(resolve_base_dir(model.path, weights=False)).decode
