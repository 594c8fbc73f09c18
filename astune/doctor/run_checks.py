"""Runs the checks, one after the other. One that crashes is a finding, not the end of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from astune.config.rules import evaluates_tasks, plays_episodes
from astune.config.schema import AstuneConfig
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.checks.chat_template import check_template
from astune.doctor.checks.config_file import check_config
from astune.doctor.checks.context import check_context
from astune.doctor.checks.dry_run import check_dry_run, check_workflow
from astune.doctor.checks.endpoints import check_endpoints
from astune.doctor.checks.examples import check_examples
from astune.doctor.checks.judge import check_judge
from astune.doctor.checks.memory import check_memory
from astune.doctor.checks.model import check_model
from astune.doctor.checks.online import check_service
from astune.doctor.checks.packages import check_packages
from astune.doctor.checks.run_folder import check_run_folder
from astune.doctor.checks.tasks import check_tasks
from astune.doctor.checks.tools import check_tools
from astune.doctor.checks.training import check_training
from astune.doctor.checks.workspace import check_workspace
from astune.doctor.findings import Finding, fail, skip
from astune.errors import name_error
from astune.support.user_code import code_of, place_of

Check = Callable[[CheckedConfig], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "config": check_config,
    "packages": check_packages,
    "tasks": check_tasks,
    "model": check_model,
    "tools": check_tools,
    "workspace": check_workspace,
    "workflow": check_workflow,
    "judge": check_judge,
    "dry run": check_dry_run,
    "template": check_template,
    "context": check_context,
    "examples": check_examples,
    "training": check_training,
    "endpoints": check_endpoints,
    "run folder": check_run_folder,
    "online": check_service,
    "memory": check_memory,
}
"""In the order in which they run: later ones use what earlier ones made."""
OF_THE_RUN = ("config", "model", "template", "run folder", "online")
"""Checks of what all of `astune.stages` have in common."""
OF_EPISODES = ("tasks", "tools", "workspace", "workflow", "judge", "dry run", "context")
"""Checks of what a run needs to play episodes."""
OF_RUNS = (*OF_EPISODES, "training", "run folder")
"""Checks of what `astune online` has no use for."""


def run_checks(checked: CheckedConfig, checks: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """The findings of all checks, in their order. Paths below the working directory are relative to it."""
    here = f"{Path.cwd()}/"
    with checked.opened:
        return [
            replace(
                finding,
                check=name,
                **{part: getattr(finding, part).replace(here, "") for part in ("what", "where", "fix")},
            )
            for name, check in checks.items()
            for finding in _of_stages(name, check, checked)
        ]


def _of_stages(name: str, check: Check, checked: CheckedConfig) -> Iterator[Finding]:
    """The findings of a check; with `astune.stages` those of each stage, which is named where not all have them."""
    stages = [] if name in OF_THE_RUN else checked.stages()
    if not stages:
        yield from _findings(name, check, checked)
        return
    found = [list(_findings(name, check, stage)) for stage in stages]
    shared = [finding for finding in found[0] if all(finding in others for others in found[1:])]
    yield from shared
    for number, findings in enumerate(found, start=1):
        for finding in findings:
            if finding not in shared:
                yield replace(finding, what=f"stage {number}: {finding.what}")


def _plays(config: AstuneConfig) -> bool:
    """Tell whether any episode is played, in training or an evaluation. Trinity learns examples and no more."""
    return plays_episodes(config) or (evaluates_tasks(config) and config.backbone != "trinity")


def _findings(name: str, check: Check, checked: CheckedConfig) -> Iterator[Finding]:
    try:
        if name in OF_RUNS and not checked.runs:
            yield skip("this is a file of `astune online`, which plays no episodes")
        elif name in OF_EPISODES and not _plays(checked.config):
            yield skip("no episodes are played: examples are learned")
        else:
            yield from check(checked)
    except Missing as missing:
        yield skip(str(missing))
    except (Exception, SystemExit) as error:
        place = place_of(error)
        yield fail(
            f"the check itself broke: {name_error(error)}{code_of(error)}",
            where=place,
            fix="fix that line" if place else "report this with your configuration: the doctor should say more",
        )
