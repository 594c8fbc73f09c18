"""Samples in, an update of the weights out."""
