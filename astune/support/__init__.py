"""Helpers that several packages use and none owns: processes, signals, files, terminals, HTTP, and users' code."""
