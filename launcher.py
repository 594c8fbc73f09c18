"""`python launcher.py --conf X.yaml`: the command `astune` for a checkout that is not installed."""

import shlex
import sys

from astune.cli import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
