"""`python -m astune` is the command `astune`."""

from astune.cli import entry

if __name__ == "__main__":
    entry("python -m astune")
