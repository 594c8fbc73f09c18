"""`astune doctor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from astune.cli.run import BACKBONES
from astune.support.visible import tell


def doctor(conf: Path, overrides: Sequence[str], backbone: str | None, as_json: bool, offline: bool) -> int:
    """Prints what would break a run; 1 if something would. What the user's own code prints goes to standard error."""
    from astune.doctor import CheckedConfig, count, run_checks, show, to_json
    from astune.support.terminal import Console

    with redirect_stdout(sys.stderr):
        findings = run_checks(CheckedConfig(conf, overrides, backbone=backbone, offline=offline, backbones=BACKBONES))
    if as_json:
        tell(to_json(findings, str(conf)))
    else:
        show(findings, Console())
    return 1 if count(findings, "fail") else 0
