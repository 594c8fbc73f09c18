"""A small world of apps, in the manner of AppWorld."""

from astune.worlds.apps.environment import AppsEnvironment

__all__ = ["AppsEnvironment"]
