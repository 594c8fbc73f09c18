"""`python -m astune` is the command `astune`."""

import sys

from astune.cli import main

if __name__ == "__main__":
    sys.exit(main(program="python -m astune"))
