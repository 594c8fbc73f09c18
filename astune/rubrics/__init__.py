"""Rubrics learned from a few examples."""
