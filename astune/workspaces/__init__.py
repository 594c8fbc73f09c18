"""Workspaces: where the tools of an agent act. See `pool` for those of a run, `sandbox` for ours, `box` for judges."""

from astune.workspaces.box import open_box

__all__ = ["open_box"]
