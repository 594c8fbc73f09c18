"""`python launcher.py --conf X.yaml`: the command `astune` for a checkout that is not installed."""

import shlex
import sys

from astune.cli import entry

if __name__ == "__main__":
    entry(shlex.join(["python", sys.argv[0]]))
