"""`astune online` without a word: what one of its roles would refuse is said before any of them starts."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from astune.cli.online import command
from astune.errors import ConfigError
from astune.online import roles


@pytest.mark.parametrize(
    ("online", "said"),
    [
        ({"commit": {"min_episodes": 9, "max_episodes": 8}}, "min_episodes: got 9, but a commit has at most"),
        ({"serve": {"host": "0.0.0.0"}}, "which other machines reach"),
    ],
)
def test_no_role_starts_with_what_another_refuses(
    online: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[roles.Role] = []
    monkeypatch.setattr(roles.Role, "start", started.append)
    conf = tmp_path / "service.yaml"
    conf.write_text(yaml.safe_dump({"astune": {"online": online}}))
    with pytest.raises(ConfigError, match=said):
        command.both(Namespace(conf=conf, overrides=[], log_level=None))
    assert started == []
