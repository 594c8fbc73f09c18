"""What was said, what it was worth, and what became of it: a SQL database, SQLite or PostgreSQL.

    database = open_database("sqlite:///online.db")       # makes or upgrades the tables
    with database.writing() as connection: ...            # one transaction
    with database.reading() as connection: ...

`tables` names every table and column. Modules beside it hold the statements, one module for each kind of row; nobody
else writes SQL.
"""

from astune.store.database import Database as Database
from astune.store.database import open_database as open_database
