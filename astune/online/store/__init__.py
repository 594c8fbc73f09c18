"""Rows of the service in the database of `astune.store`, one module for each kind; nobody else writes SQL."""
