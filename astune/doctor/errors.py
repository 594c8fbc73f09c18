"""Errors in one line."""

from __future__ import annotations


def named(error: BaseException) -> str:
    """`ValueError: what it says`."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
