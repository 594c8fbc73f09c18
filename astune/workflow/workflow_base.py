"""The workflow: the user's agent code, run once per episode.

Two forms. A class:

    class Solve(Workflow):
        async def execute(self, task, tuner):
            return WorkflowOutput(answer=await my_agent(tuner.model("solver"), task.query))

or a function, with the parameter names of AgentScope 1.x's tuner:

    async def solve(task, model):
        return WorkflowOutput(response=await my_agent(model, task["query"]))

It may take `system_prompt` too, the text of that name (see `named_texts`), and then needs no `model`.

Code that is not async is a plain `def`, in both forms. Each of its episodes is played in a thread of its own:

    def solve(task, tuner):
        client = tuner.openai_client("solver", sync=True)
        return WorkflowOutput(answer=my_agent(client, task.query))
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from astune.errors import PluginError, WorkflowError, nearest
from astune.support.concurrency import begin
from astune.support.current_episode import EPISODE
from astune.support.user_values import figures, show_value
from astune.types import Task, WorkflowOutput
from astune.workflow.agentscope import check_reply, convert_output
from astune.workflow.named_texts import PARAMETER

if TYPE_CHECKING:
    from astune.workflow.tuner import Tuner

logger = logging.getLogger(__name__)

WorkflowFactory = Callable[[], "Workflow"]

EVENT = ("text", "who", "heading", "known_to")
"""What an event of an output may have; `text` it must."""
_ALLOWED = ("task", "model", "auxiliary_models", "logger", "tuner", PARAMETER)


class Workflow(ABC):
    """The user's agent. Made without arguments, one instance per episode, so it may keep state on `self`.

    What all episodes share, such as a client, a browser or a database, is opened in `setup`, kept on the class, and
    closed in `teardown`.
    """

    @classmethod  # noqa: B027
    async def setup(cls) -> None:
        """Called once per run in each process that plays episodes, before the first of them.

        Whatever this raises stops the run before its first episode; `teardown` is then not called.
        """

    @classmethod  # noqa: B027
    async def teardown(cls) -> None:
        """Called after the last episode, in the task that `setup` ran in: also after Ctrl-C and when the run failed.

        Whatever this raises is logged, and the run is kept.
        """

    @abstractmethod
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """Attempt `task` with the models that `tuner` hands out.

        The reward is the judge's, unless the output carries one. Whatever this raises ends the episode, not
        the run. It is cancelled at `astune.rollout.episode_timeout`: code that blocks the event loop
        (`time.sleep`, `requests`) cannot be cancelled and stops every other episode while it blocks.

        It may be a plain `def`, which is called in a thread of its own and may block. A thread cannot be stopped:
        at the time limit its episode ends, its calls of models are refused, and it is left to end by itself.
        """


class FunctionWorkflow(Workflow):
    """A plain function as a workflow. Its parameters were checked by `as_workflow`."""

    def __init__(self, function: Callable[..., Any], parameters: tuple[str, ...]) -> None:
        self.function = function
        self._parameters = parameters

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        if {*self._parameters} == {"task", "tuner"}:
            return await call_user_code(self.function, task=task, tuner=tuner)  # type: ignore[no-any-return]
        arguments: dict[str, Any] = {"task": task_row(task)}
        if "model" in self._parameters:
            arguments["model"] = tuner.model()
        if PARAMETER in self._parameters:
            arguments[PARAMETER] = tuner.prompt(PARAMETER, self._default_text())
        if "auxiliary_models" in self._parameters:
            arguments["auxiliary_models"] = tuner.auxiliary_models()
        if "logger" in self._parameters:
            arguments["logger"] = logger
        if "tuner" in self._parameters:
            arguments["tuner"] = tuner
        return await call_user_code(self.function, **arguments)  # type: ignore[no-any-return]

    def _default_text(self) -> str | None:
        """The workflow's own text for its parameter."""
        default = inspect.signature(self.function).parameters[PARAMETER].default
        return default if isinstance(default, str) else None

    def wants_text(self) -> bool:
        """True if it takes a text that it does not have."""
        return PARAMETER in self._parameters and self._default_text() is None


def find_missing_text(factory: WorkflowFactory, texts: Mapping[str, str]) -> str | None:
    """Say what to do about a workflow that takes a text which nobody gives it; None if all is there."""
    function = factory.args[0] if isinstance(factory, functools.partial) else None
    if function is None or PARAMETER in texts or not factory().wants_text():  # type: ignore[attr-defined]
        return None
    return (
        f"{location(function)} takes {PARAMETER}, and nothing gives it: write {PARAMETER}='You are ...' there, or name "
        f"its file in astune.prompts.files.{PARAMETER}"
    )


def begin_attempt(workflow: Workflow, task: Task, tuner: Tuner) -> Coroutine[Any, Any, object]:
    """The attempt, which begins when this is awaited."""
    if _is_async(workflow.execute):
        return workflow.execute(task, tuner)
    return call_user_code(workflow.execute, task, tuner)


async def call_user_code(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function of the user's: it is awaited here if it is async, else called in a thread of its own. Cancelling
    this ends no thread: it waits for the thread, like a task that does not let itself be cancelled."""
    if _is_async(function):
        return await function(*arguments, **named)
    episode = EPISODE.get()
    name = function.__qualname__ if episode is None else thread_name(episode.episode_id)
    thread = begin(functools.partial(function, *arguments, **named), name)
    try:
        result = await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise
    return await result if inspect.isawaitable(result) else result


def thread_name(episode_id: str) -> str:
    """The name of the thread in which a workflow that is not async plays an episode."""
    return f"workflow {episode_id}"


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def task_row(task: Task) -> dict[str, Any]:
    """The row as AgentScope 1.x's tuner hands it over: a fresh copy, with `task_id` and `query` filled in."""
    return {"task_id": task.task_id, "query": task.query, **copy.deepcopy(dict(task.metadata))}


def as_workflow(target: object) -> WorkflowFactory:
    """Turn a `Workflow` class or a function into a factory of workflows, one per episode.

    A function takes `task` (the row as a dict) and `model`, and may take `auxiliary_models`, `logger` and
    `tuner`; or it takes exactly `task` (a `Task`) and `tuner`.

    Raises:
        PluginError: what is wrong, with the name, file and line of the target.
    """
    if inspect.isclass(target):
        return _check_class(target)
    if not inspect.isfunction(target):
        raise PluginError(
            f"A workflow is a subclass of astune.Workflow or a function, not {target!r} "
            f"of type {type(target).__name__}."
        )
    function: Callable[..., Any] = target
    return functools.partial(FunctionWorkflow, function, _check_function(function))


def check_output(value: object, workflow: Workflow) -> WorkflowOutput:
    """`value` as a `WorkflowOutput`; AgentScope 1.x's own output is converted.

    Raises:
        WorkflowError: `value` is something else, its metrics are no numbers, or the answer shows that the agent waits
            for a permission.
    """
    output = value if isinstance(value, WorkflowOutput) else convert_output(value)
    source = location(workflow.function if isinstance(workflow, FunctionWorkflow) else type(workflow).execute)
    if output is None:
        raise WorkflowError(
            f"{source} returned {'None' if value is None else show_value(value)}; expected astune.WorkflowOutput, "
            "for example WorkflowOutput(answer=...) for the judge, or WorkflowOutput(answer=..., reward=1.0)."
        )
    check_reply(output.answer, source)
    for event in output.events:
        if not isinstance(event, Mapping) or "text" not in event or not {*event} <= {*EVENT}:
            raise WorkflowError(
                f"{source} returned the event {show_value(event)}; expected one with {', '.join(EVENT)}"
            )
    try:
        return replace(output, metrics=figures(output.metrics))
    except ValueError as error:
        raise WorkflowError(f"{source} returned an output whose {error}") from error


def location(function: Callable[..., Any]) -> str:
    """`name (file:line)` of a function or method.

    >>> location(as_workflow)
    'as_workflow (...workflow_base.py:...)'
    """
    code = inspect.unwrap(function).__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def _check_class(target: type) -> type[Workflow]:
    name = f"{target.__module__}.{target.__qualname__}"
    if not issubclass(target, Workflow):
        raise PluginError(f"The workflow class {name} does not derive from astune.Workflow.")
    if inspect.isabstract(target):
        missing = ", ".join(sorted(target.__abstractmethods__))
        raise PluginError(f"The workflow class {name} does not define: {missing}.")
    where = location(target.execute)
    _check_returns(target.execute, where)
    positional = [p for p in inspect.signature(target.execute).parameters.values() if p.default is p.empty]
    if len(positional) != 3:
        raise PluginError(
            f"{where} takes ({', '.join(p.name for p in positional)}); expected `execute(self, task, tuner)`."
        )
    for name in ("setup", "teardown"):
        _check_shared(target, name)
    needed = [p.name for p in inspect.signature(target).parameters.values() if _is_required(p)]
    if needed:
        raise PluginError(
            f"The workflow class {name} cannot be made without arguments: its __init__ needs {', '.join(needed)}."
        )
    return target


def _check_shared(target: type[Workflow], name: str) -> None:
    """`setup` and `teardown` belong to the class: an episode has an instance of its own, and the run has none."""
    written = inspect.getattr_static(target, name)
    function = written.__func__ if isinstance(written, classmethod | staticmethod) else written
    where = location(function) if inspect.isfunction(function) else f"{target.__qualname__}.{name}"
    expected = f"expected\n    @classmethod\n    async def {name}(cls) -> None, or the same without async"
    if not isinstance(written, classmethod):
        raise PluginError(f"{where} is called once per run, when there is no instance yet; {expected}")
    method = getattr(target, name)
    _check_returns(method, where)
    needed = [p.name for p in inspect.signature(method).parameters.values() if _is_required(p)]
    if needed:
        raise PluginError(f"{where} takes {', '.join(needed)}, which nobody gives it; {expected}")


def _check_returns(function: Callable[..., Any], where: str) -> None:
    """A generator would do nothing when it is called."""
    written = inspect.unwrap(function)
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        raise PluginError(f"{where} is a generator: it has a `yield`; expected one that returns")


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic


def _check_function(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters of a workflow function, or a `PluginError`."""
    where = location(function)
    _check_returns(function, where)
    forms = f"Allowed names: {', '.join(_ALLOWED)}; or exactly (task, tuner)."
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise PluginError(f"{where} takes *{name}: arguments are given by name. {forms}")
        if parameter.kind is parameter.VAR_KEYWORD:
            raise PluginError(f"{where} takes **{name}: arguments are given by name. {forms}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise PluginError(f"{where} takes {name!r} by position only: arguments are given by name. {forms}")
        if name not in _ALLOWED:
            raise PluginError(f"{where} takes {name!r}, which is unknown.{nearest(name, _ALLOWED)} {forms}")
    if set(parameters) == {"task", "tuner"}:
        return tuple(parameters)
    for name in ("task",) if PARAMETER in parameters else ("task", "model"):
        if name not in parameters:
            raise PluginError(f"{where} does not take {name!r}. {forms}")
    return tuple(parameters)
