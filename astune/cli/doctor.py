"""`astune doctor`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout

from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.support.visible import tell_json

EXAMPLES = """\
  {program} doctor                                    # what is installed here, and what is missing for what
  {program} doctor --conf my_agent.yaml
  {program} doctor --conf my_agent.yaml --offline --json > doctor.json"""


def add_doctor(commands: Commands) -> None:
    command = commands.add_parser("doctor", help="find what would break a run before it starts", examples=EXAMPLES)
    command.set_defaults(execute=doctor)
    add_conf(
        command, "the configuration; without one: what is installed, on which hardware, and what is missing", False
    )
    command.add_argument("--backbone", help="as for a run; sets astune.backbone")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--offline", action="store_true", help="leave out what needs the network")
    add_overrides(command)


def doctor(known: argparse.Namespace) -> int:
    """Print what would break a run, or without a configuration what this machine lacks; 1 if something fails.

    What the user's own code prints goes to standard error.
    """
    from astune.backbone.base import BACKBONES
    from astune.doctor import CheckedConfig, closing, count, run_checks, show, to_json
    from astune.doctor.machine import check_machine, count_ready
    from astune.support.terminal import Console

    if known.conf is None:
        findings = check_machine()
        tell_json(to_json(findings, "")) if known.json else show(findings, Console(), count_ready(findings))
        return 1 if count(findings, "fail") else 0
    with redirect_stdout(sys.stderr):
        options = {"backbone": known.backbone, "offline": known.offline, "backbones": BACKBONES}
        findings = run_checks(CheckedConfig(known.conf, known.overrides, **options))
    if known.json:
        tell_json(to_json(findings, str(known.conf)))
    else:
        show(findings, Console(), closing(findings))
    return 1 if count(findings, "fail") else 0
