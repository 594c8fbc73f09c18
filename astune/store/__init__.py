"""A SQL database, SQLite or PostgreSQL: of a run's episodes (`astune.monitor.store`) and of the online service.

    database = open_database("sqlite:///online.db")       # makes or upgrades the tables
    with database.writing() as connection: ...            # one transaction
    with database.reading() as connection: ...

`tables` names every table and column, of which `migrations` makes older databases. `runs` has the statements about
runs, `astune.online.store` those about the service; nobody else writes SQL.
"""

from astune.store.database import Database as Database
from astune.store.database import open_database as open_database
