"""`AppsEnvironment`: a person's apps, and an agent that is asked to do something with them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from astune.environment.environment_base import Action, Environment, Instance, Message, Observation, function_tool
from astune.errors import ConfigError, TaskError, nearest
from astune.worlds.apps import calendar_tasks, file_tasks, mail_tasks
from astune.worlds.apps.app import App, AppError
from astune.worlds.apps.calendar_app import CALENDAR
from astune.worlds.apps.contacts_app import CONTACTS
from astune.worlds.apps.files_app import FILES
from astune.worlds.apps.mail_app import MAIL
from astune.worlds.apps.seeded_world import make_world
from astune.worlds.apps.state import World, changes
from astune.worlds.apps.task import AppsTask, Template

TEMPLATES: dict[str, Template] = {
    template.__name__: template
    for template in (
        calendar_tasks.move_meeting,
        mail_tasks.count_unread,
        file_tasks.clean_up,
        calendar_tasks.invite_who_said_yes,
        mail_tasks.reply_with_line,
        file_tasks.add_up_invoices,
        calendar_tasks.cancel_from_hour,
        mail_tasks.save_attachment,
        file_tasks.send_file,
        mail_tasks.new_phone_number,
        mail_tasks.mail_group,
        mail_tasks.archive_read,
    )
}


def make_task(template: str, seed: str) -> AppsTask:
    """The same for equal arguments, on every platform."""
    rng = random.Random(seed)
    return TEMPLATES[template](rng, make_world(rng))


NOTHING_ELSE = "nothing else was changed"
ANSWER = "the answer is right"


def score_checks(task: AppsTask, world: World) -> dict[str, bool]:
    """One check for each change that is expected, one that there is no other, and one of the answer if one is due.

    Records are compared, not the way there: what is changed and changed back was not changed.
    """
    wanted, found = changes(task.start, task.expected), changes(task.start, world)
    checks = {change: found[change] >= times for change, times in wanted.items()}
    checks[NOTHING_ELSE] = not found - wanted
    if task.expected.answer is not None:
        checks[ANSWER] = world.answer is not None and _plain(world.answer) == _plain(task.expected.answer)
    return checks


def _plain(answer: str) -> str:
    """Without what makes no difference: capitals, blanks around it and a full stop."""
    return answer.strip().removesuffix(".").casefold()


APPS: dict[str, App] = {app.name: app for app in (CALENDAR, CONTACTS, FILES, MAIL)}
SPLITS = ("train", "validation", "test")
_APP, _API = {"type": "string", "description": "name of the app"}, {"type": "string", "description": "name of the API"}
TOOLS = (
    function_tool("list_apps", "The apps there are.", {}),
    function_tool("list_apis", "The APIs of an app.", {"app": _APP}),
    function_tool("api_docs", "What an API does and which arguments it takes.", {"app": _APP, "api": _API}),
    function_tool(
        "call",
        "Call an API.",
        {"app": _APP, "api": _API, "arguments": {"type": "object", "description": "arguments by name"}},
    ),
    function_tool(
        "finish",
        "End the task.",
        {"answer": {"type": "string", "description": "the answer; empty where nothing was asked"}},
    ),
)
_PARAMETERS: dict[str, list[str]] = {
    tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in TOOLS
}


class AppsEnvironment(Environment):
    """A toy in the manner of AppWorld (Trivedi et al. 2024, https://arxiv.org/abs/2407.18901), which has 9 apps with
    457 APIs, about 100 people and 750 tasks. Borrowed from it: the agent has to find out which APIs there
    are; ids must be looked up and lists come in pages; and the score compares states, so any way that leads there is
    right and anything else that was changed is not. Here are 4 apps with 32 APIs, one person, 12 kinds of tasks filled
    by a seed, and actions that are tool calls, not programs.

        astune env serve --env apps

    Args:
        tasks: how many tasks `train` has; `validation` and `test` have a quarter of that each, at least one.
        seed: another seed makes other worlds and tasks.
    """

    env_type = "apps"

    def __init__(self, tasks: int = 200, seed: int = 0) -> None:
        for name, value, least in (("tasks", tasks, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"apps: {name}: expected a whole number from {least}, got {value!r}")
        self._seed = seed
        sizes = dict(zip(SPLITS, (tasks, -(-tasks // 4), -(-tasks // 4)), strict=True))
        self._ids = {split: [_task_id(split, number) for number in range(size)] for split, size in sizes.items()}

    def task_ids(self, split: str) -> Sequence[str]:
        """Kinds of tasks by turns, as `train-0-move_meeting`, `train-1-count_unread`."""
        if split not in self._ids:
            raise TaskError(f"apps has no split {split!r}.{nearest(split, SPLITS)} It has: {', '.join(SPLITS)}")
        return tuple(self._ids[split])

    def task(self, task_id: str) -> AppsTask:
        """The task with its expected end and its reference solution."""
        ids = self._ids.get(task_id.partition("-")[0], [])
        if task_id not in ids:
            raise TaskError(f"apps has no task {task_id!r}.{nearest(task_id, ids)}")
        return make_task(task_id.rpartition("-")[2], f"{self._seed}/{task_id}")

    def create(self, task_id: str, params: Mapping[str, Any]) -> AppsInstance:
        return AppsInstance(self.task(task_id))


class AppsInstance(Instance):
    """One copy of a task's world. The answer to `finish` lists the checks, as `info["checks"]` does, for people:
    nothing that the agent does after it counts.
    """

    tools = TOOLS

    def __init__(self, task: AppsTask) -> None:
        self._task = task
        self.world = copy.deepcopy(task.start)

    def first_messages(self) -> Sequence[Message]:
        world = self.world
        rules = (
            f"You work for {world.name} ({world.email}), who has several apps. It is {world.now:%A}, "
            f"{world.now:%Y-%m-%d %H:%M}. Find out with list_apps, list_apis and api_docs what the apps can do, use "
            "them with call, and end with finish. Change nothing that you were not asked to change."
        )
        return ({"role": "system", "content": rules}, {"role": "user", "content": self._task.query})

    def step(self, action: Action) -> Observation:
        messages = tuple(
            {"role": "tool", "tool_call_id": one.id, "content": self._answer(one.name, one.arguments)}
            for one in action.tool_calls
        )
        if self.world.answer is not None:
            return Observation(messages, done=True, info={"checks": score_checks(self._task, self.world)})
        return Observation(messages or ({"role": "user", "content": "Use the tools; finish ends the task."},))

    def evaluate(self) -> float:
        """The share of the task's checks that hold."""
        checks = score_checks(self._task, self.world)
        return sum(checks.values()) / len(checks)

    def _answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        try:
            return self._use(tool, arguments)
        except AppError as mistake:
            return f"Error: {mistake}"

    def _use(self, tool: str, arguments: Mapping[str, Any]) -> str:
        if self.world.answer is not None:
            raise AppError("the task has ended; nothing was done")
        _check_arguments(tool, arguments)
        if tool == "finish":
            self.world.answer = arguments["answer"]
            checks = score_checks(self._task, self.world)
            marks = [f"[{'x' if holds else ' '}] {name}" for name, holds in checks.items()]
            return "\n".join([f"The task has ended; {sum(checks.values())} of {len(checks)} checks hold:", *marks])
        if tool == "list_apps":
            return "\n".join(f"{app.name}: {app.about}" for app in APPS.values())
        app = _find_app(arguments["app"])
        if tool == "list_apis":
            return "\n".join(f"{api.name}: {api.about}" for api in app.apis.values())
        api = app.find(arguments["api"])
        return json.dumps(api.docs() if tool == "api_docs" else api(self.world, arguments["arguments"]))


def _check_arguments(tool: str, arguments: Mapping[str, Any]) -> None:
    if tool not in _PARAMETERS:
        raise AppError(f"there is no tool {tool!r:.60}.{nearest(tool, _PARAMETERS)}")
    needed = _PARAMETERS[tool]
    if set(arguments) != set(needed):
        raise AppError(
            f"{tool} takes {', '.join(needed) or 'nothing'}; it got {', '.join(map(str, arguments)) or 'nothing'}"
        )
    for name in needed:
        kind, called = (Mapping, "an object") if name == "arguments" else (str, "a text")
        if not isinstance(arguments[name], kind):
            raise AppError(f"{tool}: {name}: expected {called}, got {arguments[name]!r:.60}")


def _find_app(name: str) -> App:
    if name not in APPS:
        raise AppError(f"there is no app {name!r:.60}.{nearest(name, APPS)} There are: {', '.join(APPS)}")
    return APPS[name]


def _task_id(split: str, number: int) -> str:
    return f"{split}-{number}-{list(TEMPLATES)[number % len(TEMPLATES)]}"
