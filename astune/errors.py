"""Every error a user can meet. Each carries a message that says what was wrong, where, and what to do.

AstuneError
  ConfigError          a key, value or combination in a config file or on the command line
  PluginError          a name such as `package.module:Name` that does not load
  TaskError            a data set that cannot be read
  ModelError           a model folder without weights, tokenizer or chat template
  MissingDependency    an optional extra that is not installed
  RolloutError         one episode; becomes data, never ends a run
    WorkflowError        the workflow raised or returned the wrong type
    JudgeError           the judge cannot tell
    PolicyError          the engine failed
    EnvServiceError      the environment service failed, or does not know the instance any more
      ToolServerError      a server of tools died or cannot be reached
    ContextOverflow      the prompt leaves no room for an answer
    TooManyTurns         the workflow asked for more model calls than allowed
    TooManyTokens        the episode has sampled as many tokens as allowed
  InvariantError       something that must hold of every episode does not: a fault of ASTune
  SetupError           a workflow's `setup` failed, so that no episode can be played
  TrainingError        the run cannot go on (too many skipped updates, for example)
  StoreError           a database that cannot be used
  RunFolderError       a file of a run that cannot be written or read: a full disk, a broken line
  OnlineError          online training: a body that is none, a service that is away or says no

CtrlC, which is no AstuneError, is what the handlers of signals raise.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class AstuneError(Exception):
    """Base of all errors that ASTune explains itself; the command line prints them without a traceback."""


class ConfigError(AstuneError):
    pass


class PluginError(AstuneError):
    pass


class TaskError(AstuneError):
    pass


class ModelError(AstuneError):
    pass


class MissingDependency(AstuneError):
    pass


class RolloutError(AstuneError):
    pass


class WorkflowError(RolloutError):
    pass


class JudgeError(RolloutError):
    pass


class PolicyError(RolloutError):
    pass


class EnvServiceError(RolloutError):
    pass


class ToolServerError(EnvServiceError):
    pass


class ContextOverflow(RolloutError):
    pass


class TooManyTurns(RolloutError):
    pass


class TooManyTokens(RolloutError):
    pass


class SetupError(AstuneError):
    pass


class InvariantError(AstuneError):
    pass


class TrainingError(AstuneError):
    pass


class StoreError(AstuneError):
    pass


class RunFolderError(AstuneError):
    pass


class OnlineError(AstuneError):
    pass


class CtrlC(KeyboardInterrupt):
    """A person's Ctrl-C; a plain `KeyboardInterrupt` may also be raised by a workflow, whose episode then fails."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name.

    >>> nearest("roolout", ["rollout", "model"])
    " Did you mean 'rollout'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def name_error(error: BaseException) -> str:
    """`ValueError: what it says`."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


@contextmanager
def explain_missing(what: str, install: str) -> Iterator[None]:
    """Around imports for `what`: a package that is not there comes as MissingDependency with what pip is to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingDependency(f"{what} needs {error.name!r}: pip install {install}") from error
