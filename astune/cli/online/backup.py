"""`astune online backup` and `restore`."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path

from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.errors import explain_missing
from astune.support.visible import tell


def add_actions(actions: Commands) -> None:
    """The words `backup` and `restore` of `astune online`."""
    backup = actions.add_parser("backup", help="copy the store and the versions, while everything runs")
    backup.set_defaults(execute=_back_up)
    backup.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    restore = actions.add_parser("restore", help="put a backup where no service is yet, and check it")
    restore.set_defaults(execute=_restore)
    restore.add_argument("--from", type=Path, required=True, dest="source", metavar="DIR", help="the backup's folder")
    for each in (backup, restore):
        add_conf(each, "the service's configuration")
        add_overrides(each)


def _back_up(known: argparse.Namespace) -> int:
    """Raises as `make_backup`."""
    from astune.config.load import load_config
    from astune.online.place import online_folder, store_url

    with explain_missing("the store", "'astune[online]'"):
        from astune.online.backup import make_backup
        from astune.store.database import open_existing
    config = load_config(known.conf, known.overrides, for_run=False).config
    with closing(open_existing(store_url(config))) as database:
        made = make_backup(database, online_folder(config), known.to, time.time())
    gone = f"; the folders of {', '.join(made.gone)} had been deleted before" if made.gone else ""
    tell(f"{known.to} has the store and {len(made.versions)} versions{gone}")
    return 0


def _restore(known: argparse.Namespace) -> int:
    """Raises as `restore_backup`."""
    from astune.config.load import load_config
    from astune.online.place import online_folder, store_url

    with explain_missing("the store", "'astune[online]'"):
        from astune.online.backup import restore_backup
        from astune.store.database import Database
    config = load_config(known.conf, known.overrides, for_run=False).config
    with closing(Database(store_url(config))) as database:
        found = restore_backup(known.source, database, online_folder(config))
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.made))
        tell(f"restored what was copied at {made}: {database.address}, {len(found.versions)} versions, all as written")
    return 0
