"""Does the workflow load?"""

from __future__ import annotations

from collections.abc import Iterator

from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.packages import how_to_install
from astune.doctor.findings import Finding, fail, ok
from astune.errors import PluginError, name_error
from astune.plugins import load_plugin
from astune.support.user_code import code_of, place_of
from astune.workflow.workflow_base import as_workflow

KEY = "astune.rollout.agentscope_learn_protocol"


def check_workflow(checked: CheckedConfig) -> Iterator[Finding]:
    spec = checked.config.rollout.agentscope_learn_protocol
    assert spec is not None, "astune.config.rules refuses a configuration without a workflow"
    try:
        factory = as_workflow(load_plugin(spec, kind="workflow"))
    except PluginError as error:
        fix = how_to_install(str(error)) or _how_to_fix(str(error))
        yield fail(str(error), where=checked.where(KEY), fix=fix)
        return
    try:
        factory()
    except Exception as error:
        what = f"the workflow cannot be made: {name_error(error)}{code_of(error)}"
        yield fail(what, where=place_of(error) or checked.where(KEY), fix="fix __init__: it runs once per episode")
        return
    checked.workflow = factory
    yield ok(f"{spec} loads, and its parameters fit")


def _how_to_fix(message: str) -> str:
    if "importing it failed" in message:
        return "fix the line that is named: the file must import without errors"
    if "there is no" in message or "no such file" in message or "Expected 'package.module:Name'" in message:
        return "name a file and a class or function that there is: 'my_agent.py:MyWorkflow'"
    return (
        "write it as a Workflow class with `execute(self, task, tuner)` or a function of (task, tuner) or (task, model)"
    )
