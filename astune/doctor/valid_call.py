"""Does a tool run when the model calls it as it should? What a call without arguments does not show: it is refused
before anybody is asked for permission, and before the tool begins."""

from __future__ import annotations

import re
from collections.abc import Iterator

from astune.doctor.dry_run import ENDS, DryRun
from astune.doctor.findings import Finding, fail, ok
from astune.doctor.patient import Patient
from astune.support.user_code import source_of

KEY = "astune.rollout.agentscope_learn_protocol"
_AGENT = re.compile(r"\bAgent\(")


def tool_to_try(played: DryRun) -> str | None:
    """The first tool that does not look made to hand in the answer."""
    return next((name for name in played.tools if not ENDS.search(name)), None)


def valid_call_findings(patient: Patient, played: DryRun, tool: str) -> Iterator[Finding]:
    """What became of a call of `tool` whose arguments fit its schema."""
    episode = played.episode
    called = f"a call of {tool!r} with made-up arguments that fit it"
    if episode.error is not None and "asked for permission" in episode.error.message:
        yield fail(
            f"{called} does not run the tool: AgentScope 2.x asks for a permission, nobody answers in training, and "
            "every episode ends at its first tool call",
            where=_line_of_the_agent(patient),
            mend="Agent(..., **training_defaults()), from astune.workflow.agentscope",
        )
    elif (use := episode.tools.get(tool)) is not None and use.errors:
        yield ok(f"{called} fails: {use.message!r}; see that it is the arguments, and not the tool")


def _line_of_the_agent(patient: Patient) -> str:
    """Where the workflow's file makes an AgentScope agent first, else where the workflow is named."""
    file = source_of(patient.config.rollout.agentscope_learn_protocol or "")
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    found = next((number for number, line in enumerate(lines, start=1) if _AGENT.search(line)), None)
    return patient.where(KEY) if found is None else f"{file}:{found}"
