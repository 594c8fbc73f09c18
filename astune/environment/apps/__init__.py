"""A small world of apps, in the manner of AppWorld."""

from astune.environment.apps.environment import AppsEnvironment

__all__ = ["AppsEnvironment"]
