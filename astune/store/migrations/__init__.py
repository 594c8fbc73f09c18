"""Steps by which the tables came to be: alembic's."""
