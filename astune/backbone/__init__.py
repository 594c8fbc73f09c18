"""Backbones, which run a whole job: a folder for each, `base` for their border, and folders for what several share."""
