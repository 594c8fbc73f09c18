"""`astune online`."""
