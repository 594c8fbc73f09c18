"""Does a tool run when the model calls it as it should, and does the agent go on when it does not?

Both are tried: a call without arguments is refused before anybody is asked for permission, and before the tool begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.workflow import KEY
from astune.doctor.findings import Finding, fail, ok, warn
from astune.doctor.scripted_episode import ENDS, DryRun
from astune.support.user_code import code_of, place_of, source_of
from astune.types import StopReason
from astune.workflow.tuner import HOST_TOOLS

_AGENT = re.compile(r"\bAgent\(")


def tool_to_try(played: DryRun) -> str | None:
    """The first tool that does not look made to hand in the answer; none that would act on this machine."""
    subjects = [subject.removeprefix(HOST_TOOLS) for subject in played.notes if subject.startswith(HOST_TOOLS)]
    here = {name for subject in subjects for name in subject.split(", ")}
    return next((name for name in played.tools if not ENDS.search(name) and name not in here), None)


def on_fitting_call(checked: CheckedConfig, played: DryRun, tool: str) -> Iterator[Finding]:
    """The outcome of a call of `tool` whose arguments fit its schema."""
    episode = played.episode
    called = f"a call of {tool!r} with made-up arguments that fit it"
    if episode.error is not None and "asked for permission" in episode.error.message:
        yield fail(
            f"{called} does not run the tool: AgentScope 2.x asks for a permission, nobody answers in training, and "
            "every episode ends at its first tool call",
            where=_line_of_the_agent(checked),
            fix="Agent(..., **training_defaults()), from astune.workflow.agentscope",
        )
    elif (use := episode.tools.get(tool)) is not None and use.errors:
        yield ok(f"{called} fails: {use.message!r}; see that it is the arguments, and not the tool")


def _line_of_the_agent(checked: CheckedConfig) -> str:
    """The line of the workflow's file that makes an AgentScope agent first, else the one that names the workflow."""
    file = source_of(checked.config.rollout.agentscope_learn_protocol or "")
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    found = next((number for number, line in enumerate(lines, start=1) if _AGENT.search(line)), None)
    return checked.where(KEY) if found is None else f"{file}:{found}"


def on_call_without_arguments(checked: CheckedConfig, played: DryRun, tool: str) -> Iterator[Finding]:
    """The workflow's reaction to a call without arguments."""
    episode = played.episode
    called = f"a call of {tool!r} without its arguments, as an untrained model writes them,"
    if episode.stop_reason is StopReason.TIMEOUT or (
        episode.error is not None and episode.stop_reason is StopReason.ERROR and episode.error.stage == "workflow"
    ):
        assert episode.error is not None
        yield warn(
            f"{called} ends the whole episode: {episode.error.kind}: {episode.error.message}"
            f"{code_of(episode.error.traceback)}",
            where=place_of(episode.error.traceback) or checked.where(KEY),
            fix="catch it where the tool is called and hand the error to the model as the tool's result",
        )
    elif episode.stop_reason is StopReason.MAX_TURNS:
        yield warn(
            f"the agent has tools, and after one call of a tool astune.rollout.max_turns = {len(episode.turns)} leaves "
            "it no call to answer",
            where=checked.where("astune.rollout.max_turns"),
            fix="raise it: each tool call is a turn, and so is the answer",
        )
    elif not any(message.get("role") == "tool" for turn in episode.turns for message in turn.messages):
        yield warn(
            f"{called} got no result: the model was not called again with one",
            where=checked.where(KEY),
            fix="send a message with role 'tool' for each call, then call the model again",
        )
    else:
        yield ok(f"{called} is answered with a tool result, and the agent goes on")
