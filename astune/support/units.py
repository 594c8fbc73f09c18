"""Large numbers in few characters."""

from __future__ import annotations

GIB = 2**30


def show_bytes(number: float) -> str:
    """Bytes.

    >>> show_bytes(5 * 2**20), show_bytes(3 * 2**30)
    ('5 MiB', '3.0 GiB')
    """
    return f"{number / GIB:.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:.0f} MiB"


def show_count(number: float) -> str:
    """Parameters, in millions or billions.

    >>> show_count(900_000), show_count(7_600_000_000)
    ('0.9M', '7.6B')
    """
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
