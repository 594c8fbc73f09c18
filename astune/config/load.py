"""Read the configuration: code defaults < overlay of the backbone < preset of the algorithm < the user's file <
`key=value` overrides.

    loaded = load_config(Path("demo.yaml"), ["astune.trainer.total_steps=10"])
    loaded.config.astune.trainer.total_steps     # 10
    loaded.origins["astune.trainer.total_steps"] # "command line"

Everything that is wrong is reported at once, each with its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from astune.config.keys import FIELDS, FREE_FORM, LEAVES, children, describe, section_by_name, unknown_key, value_at
from astune.config.rules import (
    STAGES,
    contradictions,
    contradictions_without_a_run,
    own_key_problems,
    stage_contradictions,
    wrong_sections,
)
from astune.config.rules.models import config_of
from astune.config.schema import Config
from astune.config.section import LaidOver, Located, Section, merge
from astune.config.source import Layer, Origin, Place, read_older_keys, read_overrides, read_yaml
from astune.errors import ConfigError, nearest
from astune.support.file_kinds import Kind, other_kind
from astune.support.resources import default_config_dir

__all__ = ["LoadedConfig", "Origin", "Place", "load_config"]

Rules = Callable[[Config], Iterator[tuple[str, str]]]
DEFAULTS = Config()
EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "datetime_from_date_parsing": "a time, as 2026-01-31T12:00",
    "datetime_type": "a time, as 2026-01-31T12:00",
    "dict_type": "a section of keys and values",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "string_type": "text (put it in quotes)",
    "timezone_naive": "a time without a zone, as 2026-01-31T12:00",
    "tuple_type": "a list",
}
"""Pydantic's types of errors in plain words; the others are understandable as they are."""


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration and where each value came from. `origins` has every key of `LEAVES`, and of those in
    `FREE_FORM` each key inside."""

    config: Config
    origins: Mapping[str, Place]
    source: Path | None
    stages: tuple[LoadedConfig, ...] = ()
    """The configuration of each of `astune.stages`."""

    def set_by_user(self) -> list[str]:
        """The keys that the user's file, the command line or the arguments of a call set."""
        users = ("command line", "argument", self.source)
        return [key for key in LEAVES if (_file(self.origins[key]) or self.origins[key]) in users]

    def differs_from_default(self, key: str) -> bool:
        return bool(value_at(self.config, key) != value_at(DEFAULTS, key))

    def where(self, key: str) -> str:
        """`key` with its place, as it stands before an error message: `demo.yaml:12: astune.seed`."""
        place = self.origins[key]
        return key if place == "default" else f"{place}: {key}"


def load_config(
    conf: Path | None,
    overrides: Sequence[str] = (),
    *,
    backbone: str | None = None,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    for_run: bool = True,
) -> LoadedConfig:
    """Raises `ConfigError` with all that is wrong, one problem in a line. `options` are values by dotted key that
    command-line options stand for, `arguments` those that a program gives. With `for_run=False` it may lack what only a
    run needs, as a workflow.

    A relative path is meant from the file that names it, on the command line from the working directory.
    """
    if conf and (wrong := other_kind(conf, "a configuration", Kind.CONFIG)):
        raise ConfigError(wrong)
    user = read_yaml(conf) if conf else Layer()
    command = read_overrides(overrides)
    if backbone is not None:
        command.put("astune.backbone", backbone, "command line")
    if resume:
        command.put("astune.resume", True, "command line")
    for key, value in (options or {}).items():
        command.put(key, value, "command line")
    for key, value in (arguments or {}).items():
        command.put(key, value, "argument")
    stack = _stack_layers(conf, [user, command])
    config = stack.check()
    stages = tuple(_stages(stack, conf, [user, command], contradictions if for_run else contradictions_without_a_run))
    loaded = LoadedConfig(config, stack.origins(), conf, stages)
    for key, what in _contradictions(loaded) if for_run else contradictions_without_a_run(config):
        stack.problem(key, what)
    _check_models(stack, config, contradictions if for_run else contradictions_without_a_run)
    if stack.problems:
        raise stack.error()
    return loaded


def _stack_layers(conf: Path | None, layers: list[Layer]) -> _Stack:
    """The layers with those files below them that they ask for."""
    for layer in layers:
        read_older_keys(layer)
    stack = _Stack(conf, layers)
    overlay = default_config_dir() / f"{stack.get('astune.backbone')}.yaml"
    preset = default_config_dir() / "presets" / f"{stack.get('astune.algorithm.preset')}.yaml"
    if below := [read_yaml(file) for file in (overlay, preset) if file.is_file()]:
        stack = _Stack(conf, [*below, *layers])
    if conf and stack.get("astune.experiment_name") is None:
        stack.set("astune.experiment_name", conf.stem)
    stack.locate_files()
    return stack


def _contradictions(loaded: LoadedConfig) -> Iterator[tuple[str, str]]:
    """With stages these are looked at, and what they have in common is no run."""
    if not loaded.stages:
        yield from contradictions(loaded.config)
    yield from stage_contradictions(loaded.config.astune, [stage.config.astune for stage in loaded.stages])


def _stages(stack: _Stack, conf: Path | None, layers: list[Layer], rules: Rules) -> Iterator[LoadedConfig]:
    """Each stage laid over everything else, with all that is wrong in it among the problems of `stack`."""
    given = stack.get(STAGES)
    for what in wrong_sections(given):
        stack.problem(STAGES, what)
    if stack.problems or not given:
        return
    place = stack.place(STAGES) or "default"
    for number, values in enumerate(given, start=1):
        over = Layer()
        for section, inside in values.items():
            over.put(f"astune.{section}", inside, place)
        over.put(STAGES, [], place)
        stage = _stack_layers(conf, [*layers, over])
        try:
            config = stage.check()
        except ConfigError:
            stack.problems += [f"{problem} (stage {number})" for problem in stage.problems]
            continue
        for key, what in rules(config):
            stage.problem(key, f"stage {number}: {what}")
        stack.problems += stage.problems
        yield LoadedConfig(config, stage.origins(), conf)


def _check_models(stack: _Stack, config: Config, rules: Rules) -> None:
    """Put what is wrong in one of `astune.models` alone, and not in the run's own sections, among the problems of
    `stack`."""
    known = {*rules(config)} if config.astune.models else set()
    for name, model in config.astune.models.items():
        key = f"astune.models.{name}"
        for problem in own_key_problems(config.astune, name):
            stack.problem(*problem)
        if model.past_of is not None:
            continue  # it has nothing of its own that could be wrong
        try:
            laid_over = config.model_copy(update={"astune": config_of(config.astune, name)})
        except ValidationError as error:
            section = {"LoraConfig": "model.lora", "TrainerConfig": "trainer"}.get(error.title, "algorithm")
            for details in error.errors():
                stack.complain(details, f"astune.{section}", f"{key}.{section.rpartition('.')[2]}")
            continue
        for where, what in rules(laid_over):
            if (where, what) not in known:
                stack.problem(key, f"{where}: {what}")


class _Stack:
    """Layers put on top of each other over the code defaults, interpolated, and the list of what is wrong."""

    def __init__(self, source: Path | None, layers: Sequence[Layer]) -> None:
        self.source, self.layers = source, layers
        self.problems = [problem for layer in layers for problem in layer.problems]
        tree: dict[str, Any] = DEFAULTS.model_dump(mode="json")
        for layer in layers:
            tree = merge(tree, layer.values)
        self.tree: dict[str, Any] = self._interpolate(tree)

    def get(self, key: str) -> Any:
        """The value of a dotted key, None where there is none."""
        node: Any = self.tree
        for name in key.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def set(self, key: str, value: Any) -> None:
        section, _, name = key.rpartition(".")
        if isinstance(inside := self.get(section), dict):
            inside[name] = value

    def place(self, key: str) -> Place | None:
        """The place of `key` in the topmost layer that has it."""
        return next((layer.places[key] for layer in reversed(self.layers) if key in layer.places), None)

    def origins(self) -> dict[str, Place]:
        """The places of all values, lowest layer first, so that the topmost that has a key counts."""
        found: dict[str, Place] = {key: self.place(key) or "default" for key in LEAVES}
        for layer in self.layers:
            found |= {key: place for key, place in layer.places.items() if key.partition(".")[0] in FREE_FORM}
        return found

    def problem(self, key: str, what: str) -> None:
        above, place = key, self.place(key)
        while place is None and above:
            above = above.rpartition(".")[0]
            place = self.place(above)
        where = place or self.source
        self.problems.append(f"{where}: {key}: {what}" if where else f"{key}: {what}")

    def error(self) -> ConfigError:
        if len(self.problems) == 1:
            return ConfigError(self.problems[0])
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return ConfigError(f"{len(self.problems)} errors in the configuration:\n{listed}")

    def _interpolate(self, tree: dict[str, Any]) -> dict[str, Any]:
        if _is_plain(tree):  # as most are: OmegaConf takes four times as long as all else here
            return tree
        try:
            node = OmegaConf.create(tree)
        except OmegaConfBaseException as error:
            self.problem(str(error.full_key), _plain(error))
            raise self.error() from error
        resolved: dict[str, Any] = self._resolve(node, "")
        return resolved

    def _resolve(self, node: Any, prefix: str) -> Any:
        """Plain values with every `${...}` replaced; one that cannot be is a problem, and is left out."""
        if not isinstance(node, DictConfig | ListConfig):
            return node
        values = {}
        for name in range(len(node)) if isinstance(node, ListConfig) else list(node):
            try:
                values[name] = self._resolve(node[name], f"{prefix}{name}.")
            except OmegaConfBaseException as error:
                self.problem(f"{prefix}{name}", _plain(error))
        return list(values.values()) if isinstance(node, ListConfig) else values

    def locate_files(self) -> None:
        """Makes paths absolute that are relative to the file they stand in."""
        for key in LEAVES:
            mark = next((mark for mark in FIELDS[key].metadata if isinstance(mark, Located)), None)
            if mark:
                self.set(key, self._locate(key, self.get(key), mark.kind))
            if section := section_by_name(FIELDS[key]):
                self._locate_in_named(key, section)

    def _locate_in_named(self, key: str, section: type[Section]) -> None:
        """The same in each section of a field that holds sections by name."""
        names = self.get(key)
        for name in names if isinstance(names, dict) else ():
            for inner, field in section.model_fields.items():
                place = f"{key}.{name}.{inner}"
                for mark in field.metadata if self.get(place) is not None else ():
                    if isinstance(mark, Located):
                        self.set(place, self._locate(place, self.get(place), mark.kind))
                    elif isinstance(mark, LaidOver):
                        self._locate_laid_over(place, mark.section)

    def _locate_laid_over(self, key: str, section: str) -> None:
        """The same in keys of another section that are laid over those there."""
        inside = self.get(key)
        for name in inside if isinstance(inside, dict) else ():
            field = FIELDS.get(f"{section}.{name}")
            mark = next((mark for mark in field.metadata if isinstance(mark, Located)), None) if field else None
            if mark and inside[name] is not None:
                self.set(f"{key}.{name}", self._locate(f"{key}.{name}", inside[name], mark.kind))

    def _locate(self, key: str, value: Any, kind: str) -> Any:
        """`value` with the paths in it made absolute: a text, the texts of a section, or a list of either."""
        if isinstance(value, dict) and kind == "folder":  # an API in a folder's place, and its `model` is no path
            return value
        if isinstance(value, dict):
            return {name: self._locate(f"{key}.{name}", inner, kind) for name, inner in value.items()}
        if place := self.place(key):
            file = _file(place)
            return _locate_all(value, kind, file.parent if file else Path())
        return value

    def check(self) -> Config:
        try:
            return Config.model_validate(self.tree)
        except ValidationError as error:
            for details in error.errors():
                self.complain(details)
            raise self.error() from error

    def complain(self, details: ErrorDetails, section: str = "", at: str = "") -> None:
        """Put pydantic's error among the problems: of a value in `section` that stands `at` another place."""
        key = ".".join([*([section] if section else []), *map(str, details["loc"])])
        kind, value = details["type"], details["input"]
        place = at + key.removeprefix(section) if section else key
        if kind == "extra_forbidden":
            self.problem(place, unknown_key(key))
        elif kind == "missing":
            self.problem(place.rpartition(".")[0], f"too few values, got {value!r}")
        elif kind == "model_type":
            self.problem(place, f"expected a section with {', '.join(children(key))}, got {value!r}")
        elif kind == "literal_error":
            expected = str(details["ctx"]["expected"])
            hint = nearest(str(value), re.findall(r"'(.*?)'", expected))
            self.problem(place, f"expected {expected}, got {value!r}{'.' if hint else ''}{hint}")
        elif kind == "string_pattern_mismatch":
            self.problem(place, f"expected {describe(key)}, got {value!r}")
        else:
            plain = details["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            self.problem(place, f"expected {EXPECTED.get(kind, plain)}, got {value!r}")


def _is_plain(value: Any) -> bool:
    """True if OmegaConf would give `value` back as it is: it reads `${...}` and `???`, and refuses what is no JSON."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return "${" not in value and value != "???"
    return value is None or isinstance(value, bool | int | float)


def _plain(error: OmegaConfBaseException) -> str:
    """OmegaConf's complaint about a `${...}` without the class names around it."""
    text = str(error).splitlines()[0]
    return "in ${...}: " + re.sub(r"^\w+ raised while resolving interpolation: \W?(.*?)\"?$", r"\1", text)


def _file(place: Place) -> Path | None:
    return place.file if isinstance(place, Origin) else None


def _locate_all(value: Any, kind: str, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: _locate_all(inner, kind, folder) for name, inner in value.items()}
    if isinstance(value, list):
        return [_locate_all(inner, kind, folder) for inner in value]
    return _locate_path(value, kind, folder) if isinstance(value, str) else value


def _locate_path(value: str, kind: str, folder: Path) -> str:
    """`value` with its path made absolute: relative to `folder`, `~` expanded."""
    if kind == "plugin":
        arrow = "->" if "->" in value else ":"
        file, _, name = value.rpartition(arrow)
        return f"{_absolute(file, folder)}{arrow}{name}" if file.endswith(".py") else value
    if kind == "model":
        name, _, rest = value.partition(":")
        inner = "plugin" if ":" in rest or "->" in rest else "file"
        return f"{name}:{_locate_path(rest, inner, folder)}" if name in ("scripted", "replay") and rest else value
    path = _absolute(value, folder)
    return str(path) if kind == "file" or path.is_dir() else value


def _absolute(value: str, folder: Path) -> Path:
    return (folder / Path(value).expanduser()).resolve()
