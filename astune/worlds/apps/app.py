"""Apps: functions of the state that an agent can find out about, and that answer mistakes in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from astune.errors import nearest
from astune.worlds.apps.state import CALENDAR_TIME, World

PAGE_SIZE = 5
MOST_CHARACTERS = 10_000
"""The longest text that is handed to an API."""
LARGEST_NUMBER = 10**9
_TYPES = {"str": "text", "int": "whole number", "bool": "true or false", "list[str]": "list of texts"}
"""The annotation of a parameter, and the word of the documentation for it."""


class AppError(Exception):
    """The agent's mistake, in words for the agent."""


@dataclass(frozen=True)
class Api:
    name: str
    about: str
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    described: Mapping[str, str]

    def docs(self) -> dict[str, Any]:
        """The documentation that `api_docs` shows."""
        return {
            "name": self.name,
            "description": self.about,
            "parameters": {name: self._parameter(name) for name in self.parameters},
        }

    def _parameter(self, name: str) -> dict[str, Any]:
        parameter = self.parameters[name]
        required = parameter.default is parameter.empty
        shown = {"type": _TYPES[parameter.annotation], "description": self.described[name], "required": required}
        return shown if required else {**shown, "default": parameter.default}

    def __call__(self, world: World, arguments: Mapping[str, Any]) -> Any:
        for name in arguments:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                hint = nearest(name, self.parameters)
                raise AppError(f"{self.name} has no parameter {name!r}.{hint} It has: {known}")
        for name, parameter in self.parameters.items():
            if name in arguments:
                _check(name, parameter.annotation, arguments[name])
            elif parameter.default is parameter.empty:
                raise AppError(f"{self.name} needs {name}: {self.described[name]}")
        return self.function(world, **arguments)


class App:
    """APIs under one name.

    CLOCK = App("clock", "Tells the time.")

    @CLOCK.api(zone="name of the zone")
    def read_clock(world: World, zone: str = "UTC") -> Any: ...
    """

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.apis: dict[str, Api] = {}

    def api(self, **described: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Adds a function; its docstring and what is said of each parameter are its documentation."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            _, *parameters = inspect.signature(function).parameters.values()
            taken = {one.name: one for one in parameters}
            name = function.__name__
            self.apis[name] = Api(name, inspect.cleandoc(function.__doc__ or ""), function, taken, described)
            return function

        return add

    def find(self, name: str) -> Api:
        if name not in self.apis:
            raise AppError(f"{self.name} has no API {name!r}.{nearest(name, self.apis)} It has: {', '.join(self.apis)}")
        return self.apis[name]


def _check(name: str, annotation: str, value: Any) -> None:
    kinds = {"str": str, "int": int, "bool": bool, "list[str]": list}
    right = isinstance(value, kinds[annotation]) and (annotation == "bool" or not isinstance(value, bool))
    texts = value if isinstance(value, list) else [value]
    if not right or (annotation == "list[str]" and not all(isinstance(text, str) for text in texts)):
        raise AppError(f"{name}: expected a {_TYPES[annotation]}, got {value!r:.80}")
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise AppError(f"{name}: larger than {LARGEST_NUMBER}")
    if sum(len(text) for text in texts if isinstance(text, str)) > MOST_CHARACTERS:
        raise AppError(f"{name}: more than {MOST_CHARACTERS} characters")


def paginate(items: Sequence[Any], page: int) -> dict[str, Any]:
    """One page of a list."""
    pages = max(1, -(-len(items) // PAGE_SIZE))
    if not 1 <= page <= pages:
        raise AppError(f"page: there is no page {page}; the last is {pages}")
    return {"items": list(items[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]), "page": page, "pages": pages}


def read_time(world: World, name: str, text: str) -> datetime:
    """A time as the agent writes it, at most a year from now."""
    try:
        time = datetime.strptime(text, CALENDAR_TIME)
    except ValueError:
        raise AppError(f"{name}: expected a time as 2026-03-04 14:00, got {text!r:.40}") from None
    if abs(time - world.now) > timedelta(days=366):
        raise AppError(f"{name}: {text} is more than a year from now")
    return time


def check_address(name: str, text: str) -> str:
    """The address in small letters."""
    user, at, host = text.partition("@")
    if not (user and at and "." in host) or any(sign.isspace() for sign in text):
        raise AppError(f"{name}: expected a mail address, got {text!r:.60}")
    return text.lower()
