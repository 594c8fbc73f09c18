"""Environments that ship. Each is found by its name in `astune.environment.registry` and can be removed alone."""
