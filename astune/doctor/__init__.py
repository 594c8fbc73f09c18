"""`astune doctor`: looks for what would break a long run before it starts, and how to fix it.

    findings = run_checks(CheckedConfig(Path("demo.yaml")))
    print(to_json(findings, "demo.yaml"))

It reads, renders and tries out; it never trains, never loads weights, and writes nothing.
"""

from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, Level, closing, count, show, to_json
from astune.doctor.run_checks import run_checks

__all__ = ["CheckedConfig", "Finding", "Level", "closing", "count", "run_checks", "show", "to_json"]
