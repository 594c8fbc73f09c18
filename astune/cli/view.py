"""`astune view`: every episode of a run in one page."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from astune.cli.suggesting_parser import Commands
from astune.support.chinese import localize
from astune.support.visible import tell

EXAMPLES = """\
  {program} view runs/p/n --open
  {program} view runs/p/n --serve --open                   while the run goes on"""


def add_view(commands: Commands) -> None:
    command = commands.add_parser("view", help="look at the episodes of a run: one page, no network", examples=EXAMPLES)
    command.set_defaults(execute=view)
    command.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run, as runs/project/name")
    command.add_argument("--out", type=Path, metavar="FILE", help="where to write the page; default: RUN/view.html")
    command.add_argument("--open", action="store_true", help="open it in the browser")
    command.add_argument("--serve", action="store_true", help="serve it on this machine; a reload shows what is new")
    command.add_argument("--port", type=int, default=8265, help="with --serve; default: 8265")


def view(known: argparse.Namespace) -> int:
    """Writes the page, or serves it until Ctrl-C. Raises ConfigError for a folder that is no run."""
    if known.serve:
        from astune.viewer.serve import serve_view

        def ready(address: str) -> None:
            tell(localize(f"view    {address}   (reload for what the run has written since; Ctrl-C ends)"), flush=True)
            if known.open:
                webbrowser.open(address)

        serve_view(known.run_dir, known.port, ready)
        return 0
    from astune.viewer import write_view

    path = write_view(known.run_dir, known.out or known.run_dir / "view.html")
    tell(localize(f"view    {path}"))
    if known.open:
        webbrowser.open(path.absolute().as_uri())
    return 0
