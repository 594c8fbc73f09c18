"""`astune online ui`: the operator's page."""

from __future__ import annotations

import argparse
import shlex
import webbrowser
from contextlib import closing

from astune.cli.endings import DONE
from astune.cli.online.stored import add_store, open_store
from astune.cli.suggesting_parser import Commands
from astune.support.visible import tell


def add_actions(actions: Commands) -> None:
    """The word `ui` of `astune online`."""
    ui = actions.add_parser("ui", help="look at versions, traffic, releases, feedback and the audit in a browser")
    ui.set_defaults(execute=_serve)
    ui.add_argument("--port", type=int, default=8266, help="on this machine alone; default: 8266, 0 takes any")
    ui.add_argument("--open", action="store_true", help="open it in the browser")
    add_store(ui)


def _serve(known: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises StoreError where there is no store, ConfigError where the port is taken."""
    with closing(open_store(known)) as database:
        from astune.online.operator.pages import operator_app
        from astune.viewer.serve import serve_pages

        store = ["--store", known.store] if known.conf is None else ["--conf", str(known.conf), *known.overrides]

        def ready(address: str) -> None:
            tell(f"ui      {address}   (it changes nothing; Ctrl-C ends)", flush=True)
            if known.open:
                webbrowser.open(address)

        serve_pages(operator_app(database, shlex.join(store)), known.port, ready)
    return DONE
