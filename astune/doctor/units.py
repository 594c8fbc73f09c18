"""Large numbers in few characters."""

from __future__ import annotations

GIB = 2**30


def size(number: float) -> str:
    """Bytes.

    >>> size(5 * 2**20), size(3 * 2**30)
    ('5 MiB', '3.0 GiB')
    """
    return f"{number / GIB:.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:.0f} MiB"


def in_short(number: float) -> str:
    """
    >>> in_short(900_000), in_short(7_600_000_000)
    ('0.9M', '7.6B')
    """
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
