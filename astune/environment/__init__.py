"""Environments that agents act in, and the service that runs them for others over HTTP."""
