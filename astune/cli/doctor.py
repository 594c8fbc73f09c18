"""`astune doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.suggesting_parser import add_conf, add_overrides
from astune.support.visible import tell

if TYPE_CHECKING:
    from astune.cli.suggesting_parser import Commands

EXAMPLES = """\
  {program} doctor --conf my_agent.yaml
  {program} doctor --conf my_agent.yaml --offline --json > doctor.json"""


def add_doctor(commands: Commands) -> None:
    command = commands.add_parser("doctor", help="find what would break a run before it starts", examples=EXAMPLES)
    command.set_defaults(execute=_execute)
    add_conf(command)
    command.add_argument("--backbone", help="as for a run; sets astune.backbone")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--offline", action="store_true", help="leave out what needs the network")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    return doctor(known.conf, known.overrides, known.backbone, known.json, known.offline)


def doctor(conf: Path, overrides: Sequence[str], backbone: str | None, as_json: bool, offline: bool) -> int:
    """Prints what would break a run; 1 if something would. What the user's own code prints goes to standard error."""
    from astune.backbone.base import BACKBONES
    from astune.doctor import CheckedConfig, count, run_checks, show, to_json
    from astune.support.terminal import Console

    with redirect_stdout(sys.stderr):
        findings = run_checks(CheckedConfig(conf, overrides, backbone=backbone, offline=offline, backbones=BACKBONES))
    if as_json:
        tell(to_json(findings, str(conf)))
    else:
        show(findings, Console())
    return 1 if count(findings, "fail") else 0
