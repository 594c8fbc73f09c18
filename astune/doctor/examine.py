"""Runs the checks, one after the other. One that crashes is a finding, not the end of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from astune.config.rules import plays_episodes
from astune.doctor.chat_template import check_template
from astune.doctor.config_file import check_config
from astune.doctor.context import check_context
from astune.doctor.endpoints import check_endpoints
from astune.doctor.findings import Finding, fail, skip
from astune.doctor.judge import check_judge
from astune.doctor.memory import check_memory
from astune.doctor.model import check_model
from astune.doctor.packages import check_packages
from astune.doctor.patient import Missing, Patient
from astune.doctor.run_folder import check_run_folder
from astune.doctor.tasks import check_tasks
from astune.doctor.training import check_training
from astune.doctor.workflow import check_dry_run, check_workflow
from astune.errors import named
from astune.support.user_code import code_of, place_of

Check = Callable[[Patient], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "config": check_config,
    "packages": check_packages,
    "tasks": check_tasks,
    "model": check_model,
    "workflow": check_workflow,
    "judge": check_judge,
    "dry run": check_dry_run,
    "template": check_template,
    "context": check_context,
    "training": check_training,
    "endpoints": check_endpoints,
    "run folder": check_run_folder,
    "memory": check_memory,
}
"""In the order in which they run: later ones use what earlier ones made."""
OF_EPISODES = ("tasks", "workflow", "judge", "dry run", "context")
"""Those of what a run needs to play episodes."""


def examine(patient: Patient, checks: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """What all checks found, in their order. Paths below the working directory are relative to it."""
    here = f"{Path.cwd()}/"
    with patient.opened:
        return [
            replace(
                finding,
                check=name,
                **{part: getattr(finding, part).replace(here, "") for part in ("what", "where", "mend")},
            )
            for name, check in checks.items()
            for finding in _findings(name, check, patient)
        ]


def _findings(name: str, check: Check, patient: Patient) -> Iterator[Finding]:
    try:
        if name in OF_EPISODES and not plays_episodes(patient.config):
            yield skip("no episodes are played: examples are learned, and all read before the run starts")
        else:
            yield from check(patient)
    except Missing as missing:
        yield skip(str(missing))
    except (Exception, SystemExit) as error:
        place = place_of(error)
        yield fail(
            f"the check itself broke: {named(error)}{code_of(error)}",
            where=place,
            mend="mend that line" if place else "report this with your configuration: the doctor should say more",
        )
