"""Loads what a configuration names: a built-in name, `package.module:Name` or `path/file.py:Name`.

    load_plugin("debug", kind="backbone", builtin={"debug": "astune.backbone.debug:DebugBackbone"})
    load_plugin("/home/me/agent.py:MyWorkflow", kind="workflow")

`path.to.module->Name` and `path/file.py->Name`, the older spelling, mean the same as with a colon. What is built in is
also found by its class, alone or in any module of ASTune (`builtin_name`).

What a program holds in its hands has a name too, as long as the program keeps it (`LiveObjects`):

    with LiveObjects() as live:
        load_plugin(live.name_of(lambda task, response: 1.0, "judge"), kind="judge")
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from hashlib import sha1
from importlib import metadata
from itertools import count
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from astune.errors import PluginError, nearest
from astune.support.builtin import builtin_name
from astune.support.user_code import by_user

NO_BUILTIN: Mapping[str, str] = MappingProxyType({})
LIVE = "live:"
"""Before the name of an object that only this process has."""


def load_plugin(spec: str, *, kind: str, builtin: Mapping[str, str] = NO_BUILTIN) -> Any:
    """The class or function that `spec` names. `kind` is what it is called in messages: "workflow", "judge", ...

    A file is loaded once; modules beside it can be imported by their plain names, as in `python path/file.py`.
    Raises `PluginError` that lists what there is, shows the line that failed in the user's own file, or names the
    methods that a class lacks.
    """
    if spec.startswith(LIVE):
        if spec not in _live:
            raise PluginError(
                f"{kind} {spec!r} was an object of the Python program that gave it to ASTune, and is not in this one: "
                "give it again there, or put it into a file and name that, as 'path/file.py:Name'"
            )
        return _live[spec]
    place = builtin.get(builtin_name(spec, builtin), spec)
    where, arrow, name = place.rpartition("->" if "->" in place else ":")
    known = f"; built in: {', '.join(builtin)}" if builtin else ""
    if not arrow or not where or not name.isidentifier():
        raise PluginError(
            f"unknown {kind} {spec!r}.{nearest(spec, builtin) or _nearest_file(Path(spec))} "
            f"Expected 'package.module:Name' or 'path/file.py:Name'{known}"
        )
    try:
        module = (
            _from_file(Path(where), spec, kind) if where.endswith(".py") else _from_package(where, spec, kind, known)
        )
    except PluginError:
        raise
    except Exception as error:
        hint = agentscope_hint(str(error)) if isinstance(error, ImportError) else ""
        raise PluginError(f"{kind} {spec!r}: importing it failed at {culprit(error)}{hint}") from error
    try:
        found = getattr(module, name)
    except AttributeError as error:
        own = _list_offered(module)
        raise PluginError(
            f"{kind} {spec!r}: there is no {name!r} in {where}.{nearest(name, [*own, *builtin])} "
            f"It has: {', '.join(own) or 'nothing to use'}{known if where.startswith('astune.') else ''}"
        ) from error
    if inspect.isabstract(found):
        raise PluginError(f"{kind} {spec!r} lacks {', '.join(sorted(found.__abstractmethods__))}")
    return found


def _list_offered(module: ModuleType) -> list[str]:
    """The names of what a module makes or exports itself, not of what it imports to work with."""
    exported = getattr(module, "__all__", ())
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and (name in exported or getattr(value, "__module__", None) == module.__name__)
    )


def _from_package(module: str, spec: str, kind: str, known: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise PluginError(
            f"{kind} {spec!r}: there is no module {error.name!r} on the import path; "
            f"for a file of your own write 'path/file.py:Name'{known}"
        ) from error


def _from_file(path: Path, spec: str, kind: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise PluginError(f"{kind} {spec!r}: no such file: {path}.{_nearest_file(path)}")
    name = f"_astune_plugin_{sha1(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.util.spec_from_file_location(name, path)
    assert loader and loader.loader
    module = importlib.util.module_from_spec(loader)
    _prefer_siblings(path.parent)
    sys.modules[name] = module
    try:
        loader.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _nearest_file(path: Path) -> str:
    """A hint for a file that is not there: one of a like name beside it, or in a folder of a like name."""
    if path.suffix != ".py" or path.is_file():
        return ""
    beside = {other.name: other.name for other in path.parent.glob("*.py")}
    below = {
        f"{other.parent.name}.py": f"{other.parent.name}/{other.name}" for other in path.parent.glob("*/workflow.py")
    }
    known = below | beside
    found = difflib.get_close_matches(path.name, known, n=1)
    return f" Did you mean {known[found[0]]!r}?" if found else ""


_folders: list[str] = []
"""Folders of the files loaded so far, each on `sys.path`."""


def _prefer_siblings(folder: Path) -> None:
    """Puts `folder` first on the import path. A module of an equal name that came from another plug-in's folder is
    forgotten, so that each file gets its own `utils`; the file that already imported it keeps it."""
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    others = [other for other in _folders if other != str(folder)]
    own = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}
    for name in own & sys.modules.keys():
        file = getattr(sys.modules[name], "__file__", None)
        if file and any(Path(file).is_relative_to(other) for other in others):
            del sys.modules[name]
    if str(folder) not in _folders:
        _folders.append(str(folder))


def agentscope_hint(message: str) -> str:
    """Say what to install if `message`, of an ImportError, tells that a part of AgentScope is missing; else "".

    AgentScope 1.x and 2.x have few names in common: a file is written for one of them.
    """
    if re.search(r"No module named '(agentscope[\w.]*)'|from '(agentscope[\w.]*)'", message) is None:
        return ""
    try:
        installed = metadata.version("agentscope")
    except metadata.PackageNotFoundError:
        return '; AgentScope is not installed: pip install "astune[agentscope2]"'
    other = 1 if installed.startswith("2.") else 2
    return (
        f"; AgentScope {installed} is installed and has no such name. If the file is written for AgentScope {other}.x: "
        f'pip install "astune[agentscope{other}]"'
    )


def culprit(error: BaseException) -> str:
    """`file:line: code: Error: message` of the innermost line of the user's own."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {what}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if by_user(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: `{frames[-1].line}`: {what}" if frames else what


class LiveObjects:
    """Gives a program's own functions, classes and objects names that `load_plugin` finds, until the block ends."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def name_of(self, value: object, otherwise: str) -> str:
        """The name by which every process imports a class or function; for another object one that only this process
        knows, `live:` and what it is called, or `otherwise` where nothing says so."""
        if isinstance(value, type | FunctionType) and (name := _import_name(value)) is not None:
            return name
        called = value.__name__ if isinstance(value, type | FunctionType) else otherwise
        called = called if called.isidentifier() else otherwise
        taken = (f"{LIVE}{called}{f'_{number}' if number > 1 else ''}" for number in count(1))
        name = next(each for each in taken if _live.get(each, value) is value)
        _live[name] = value
        self._names.append(name)
        return name

    def __enter__(self) -> LiveObjects:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for name in self._names:
            _live.pop(name, None)


_live: dict[str, object] = {}


def _import_name(value: type | FunctionType) -> str | None:
    """`package.module:Name`, where that is `value`; None for what is made in a script, a notebook or a function."""
    module, name = sys.modules.get(value.__module__), value.__qualname__
    if module is None or value.__module__ == "__main__" or vars(module).get(name) is not value:
        return None
    from_file = value.__module__.startswith("_astune_plugin_")
    return f"{module.__file__ if from_file else value.__module__}:{name}"
