"""Releases: a new version earns its traffic stage by stage, or goes back."""
