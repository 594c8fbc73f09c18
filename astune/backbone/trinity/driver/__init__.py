"""The process that the user started: checks, Ray's life, and the run folder."""
