"""Write the migration from the tables as the migrations make them to `astune/store/tables.py`.

    python scripts/make_migration.py 0002 "Comments of feedback"

Read what it wrote before you commit it: alembic does not see that a column was renamed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config

from astune.store.database import MIGRATIONS, open_database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", help="of four digits, one more than the last")
    parser.add_argument("message", help="what it changes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{Path(folder) / 'empty.db'}")
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.set_main_option("file_template", "v%%(rev)s_%%(slug)s")
        with database.writing() as connection:
            config.attributes["connection"] = connection
            command.revision(config, given.message, autogenerate=True, rev_id=given.number)
        database.close()


if __name__ == "__main__":
    main()
