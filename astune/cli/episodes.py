"""`astune replay`, `astune rescore` and `astune diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from astune.errors import ConfigError


def replay(files: Sequence[Path], conf: Path | None, overrides: Sequence[str], options: Mapping[str, object]) -> int:
    raise ConfigError("astune replay: recorded episodes cannot be replayed yet")


def rescore(
    files: Sequence[Path],
    judge: str,
    conf: Path | None,
    overrides: Sequence[str],
    filter_text: str | None,
    out: Path | None,
) -> int:
    raise ConfigError("astune rescore: recorded episodes cannot be judged anew yet")


def diff(first: Path, second: Path) -> int:
    raise ConfigError("astune diff: recorded episodes cannot be compared yet")
