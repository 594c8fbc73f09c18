"""The module that alembic runs: the connection is the caller's."""

from alembic import context

from astune.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
