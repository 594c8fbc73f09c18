"""`astune eval`."""
