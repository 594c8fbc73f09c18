"""Measure judges: their verdicts beside the labels that people gave."""
