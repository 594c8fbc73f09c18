"""Processes that do what this one must not: computations that may never end, or may not be trusted."""
