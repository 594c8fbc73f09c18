"""`astune doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.support.chinese import localize
from astune.support.visible import tell

EXAMPLES = """\
  {program} doctor                                    # what is installed here, and what is missing for what
  {program} doctor --conf my_agent.yaml
  {program} doctor --conf my_agent.yaml --offline --json > doctor.json"""


def add_doctor(commands: Commands) -> None:
    command = commands.add_parser("doctor", help="find what would break a run before it starts", examples=EXAMPLES)
    command.set_defaults(execute=_execute)
    add_conf(
        command, "the configuration; without one: what is installed, on which hardware, and what is missing", False
    )
    command.add_argument("--backbone", help="as for a run; sets astune.backbone")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--offline", action="store_true", help="leave out what needs the network")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    return doctor(known.conf, known.overrides, known.backbone, known.json, known.offline)


def doctor(conf: Path | None, overrides: Sequence[str], backbone: str | None, as_json: bool, offline: bool) -> int:
    """Print what would break a run, or without a configuration what this machine lacks; 1 if something fails.

    What the user's own code prints goes to standard error.
    """
    from astune.backbone.base import BACKBONES
    from astune.doctor import CheckedConfig, closing, count, run_checks, show, to_json
    from astune.doctor.machine import check_machine, count_ready
    from astune.support.terminal import Console

    if conf is None:
        findings = check_machine()
        told = [replace(finding, what=localize(finding.what)) for finding in findings]
        tell(to_json(findings, "")) if as_json else show(told, Console(), localize(count_ready(findings)))
        return 1 if count(findings, "fail") else 0
    with redirect_stdout(sys.stderr):
        findings = run_checks(CheckedConfig(conf, overrides, backbone=backbone, offline=offline, backbones=BACKBONES))
    if as_json:
        tell(to_json(findings, str(conf)))
    else:
        show(findings, Console(), closing(findings))
    return 1 if count(findings, "fail") else 0
