"""Check this folder without training: the configuration loads, and one episode is played and judged.

python check.py
"""

import sys
from pathlib import Path

from astune.cli import main


def check() -> int:
    """Play one task with the model that ships, whichever the configuration names."""
    conf = Path(__file__).with_name("agent.yaml")
    return main(["--conf", str(conf), "--backbone=debug", "--model=tiny"])


if __name__ == "__main__":
    sys.exit(check())
