"""Token ids and log-probabilities as the bytes that columns hold: little-endian, 4 and 8 bytes each.

>>> len(pack_ids(TokenIds([1, 2, 3])))
12
"""

from __future__ import annotations

import sys
from array import array

from astune.token_ids import WIDTH, Logprobs, TokenIds


def pack_ids(ids: TokenIds, start: int = 0) -> bytes:
    """The ids from `start` on."""
    return _little_endian("i", ids.packed()[start * WIDTH :])


def unpack_ids(data: bytes, before: TokenIds | None = None) -> TokenIds:
    """The ids that `data` holds, after `before`."""
    return TokenIds.from_packed(_little_endian("i", data), before if before else None)


def pack_logprobs(logprobs: Logprobs) -> bytes:
    return _little_endian("d", array("d", logprobs).tobytes())


def unpack_logprobs(data: bytes) -> Logprobs:
    values = array("d")
    values.frombytes(_little_endian("d", data))
    return Logprobs(values)


def _little_endian(kind: str, data: bytes) -> bytes:
    """From this machine's order to little-endian, or back."""
    if sys.byteorder == "little":
        return data
    values = array(kind)
    values.frombytes(data)
    values.byteswap()
    return values.tobytes()
