"""Environments, made from what `--env` and `astune.task_reader.env_service.serve` say.

load_environment("gymnasium:FrozenLake-v1", {"is_slippery": False})
load_environment("my_guess.py:Guess", {})
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astune.environment.environment_base import Environment
from astune.errors import AstuneError, ConfigError, PluginError, nearest
from astune.plugins import load_plugin


@dataclass(frozen=True)
class BuiltIn:
    """An environment that ships. `argument` is the option that stands after the colon of its spec."""

    plugin: str
    meaning: str
    argument: str = ""
    example: str = ""
    package: str = ""
    """What it needs beyond ASTune itself."""
    install: str = ""
    """How to get the package."""

    @property
    def installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None


BUILT_IN = {
    "gymnasium": BuiltIn(
        "astune.worlds.gymnasium_env:GymnasiumEnvironment",
        "an environment of Gymnasium with discrete actions",
        "env_id",
        "FrozenLake-v1",
        "gymnasium",
        "pip install 'astune[environments]'",
    ),
    "reasoning_gym": BuiltIn(
        "astune.worlds.reasoning_gym_env:ReasoningGymEnvironment",
        "tasks of a reasoning-gym data set with its verifier as score",
        "name",
        "chain_sum",
        "reasoning_gym",
        "pip install 'astune[reasoning-gym]'",
    ),
    "openenv": BuiltIn(
        "astune.worlds.openenv_env:OpenEnvEnvironment",
        "the environment of an OpenEnv server, with its tasks",
        "url",
        "http://127.0.0.1:8000",
        "wsproto",
        "pip install 'astune[environments]'",
    ),
    "countdown": BuiltIn(
        "astune.worlds.countdown:CountdownEnvironment", "make a number from given numbers, each used once"
    ),
    "apps": BuiltIn(
        "astune.worlds.apps:AppsEnvironment", "calendar, mail and files behind an API that the agent explores"
    ),
    "appworld": BuiltIn(
        "astune.worlds.appworld:AppWorldEnvironment",
        "the tasks of AppWorld, which is in a Python of its own: --option python=...",
    ),
}


def spec_of(name: str) -> str:
    """Write the spec of a built-in environment, with an example of what stands after its colon."""
    example = BUILT_IN[name].example
    return f"{name}:{example}" if example else name


def load_environment(spec: str, options: Mapping[str, Any]) -> Environment:
    """The environment that `spec` names, made with `options`. Its `env_type` is the spec unless the class has another.

    Raises `ConfigError` for an option that it does not have, `PluginError` for a spec that names no environment, and
    `MissingDependency`.
    """
    name, colon, argument = spec.partition(":")
    built_in = BUILT_IN.get(name)
    if built_in is not None:
        if bool(argument) != bool(built_in.argument) or bool(colon) != bool(argument):
            raise ConfigError(f"environment {spec!r}: write it as {spec_of(name)!r}")
        if built_in.argument in options:
            raise ConfigError(f"environment {spec!r}: option {built_in.argument!r} is what stands after the colon")
        given = {built_in.argument: argument} if argument else {}
        made = _make(spec, load_plugin(built_in.plugin, kind="environment"), {**given, **options}, given)
    else:
        made = _make(
            spec,
            load_plugin(
                spec,
                kind="environment",
                builtin={spec_of(name): built_in.plugin for name, built_in in BUILT_IN.items()},
            ),
            options,
            {},
        )
    try:
        _ = made.env_type
    except AttributeError:
        made.env_type = spec
    return made


def _make(spec: str, kind: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> Environment:
    if not (isinstance(kind, type) and issubclass(kind, Environment)):
        raise PluginError(f"environment {spec!r}: it must be a class derived from astune.environment.Environment")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise PluginError(f"environment {spec!r}: {kind.__name__} lacks {', '.join(missing)}")
    _check_options(spec, kind, options, given)
    try:
        return kind(**options)
    except AstuneError:
        raise
    except Exception as error:
        raise ConfigError(f"environment {spec!r}: making it raised {type(error).__name__}: {error}") from error


def _check_options(spec: str, kind: type, options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` that lists the options there are; those in `given` are not for the user to set."""
    parameters = inspect.signature(kind).parameters.values()
    named = {one.name: one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    shown = [
        name if one.default is one.empty else f"{name}={one.default!r}"
        for name, one in named.items()
        if name not in given
    ]
    known = f"Its options: {', '.join(shown)}" if shown else "It has no options"
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for name in options:
            if name not in named:
                raise ConfigError(f"environment {spec!r}: no option {name!r}.{nearest(name, named)} {known}")
    for name, one in named.items():
        if one.default is one.empty and name not in options:
            raise ConfigError(f"environment {spec!r}: option {name!r} is missing. {known}")
