"""Check this folder without training: one episode is played, and the judge knows right from wrong.

python check.py
"""

import sys
from pathlib import Path

from astune.cli import main


def check() -> int:
    """Play one task with the model that ships, whichever the configuration names, and try the judge on three tasks."""
    conf = str(Path(__file__).with_name("agent.yaml"))
    if code := main(["--conf", conf, "--backbone=debug", "--model=tiny"]):
        return code
    return int(main(["check-tasks", "--conf", conf, "--limit", "3"]) == 1)  # 2: a judge that cannot be tried so


if __name__ == "__main__":
    sys.exit(check())
