"""`default_config/default.yaml` says the same as the code."""

import yaml

from astune.config.keys import FIELDS, LEAVES
from astune.config.render import default_yaml
from astune.config.schema import Config
from astune.support.resources import default_config_dir


def test_the_file_equals_the_code() -> None:
    text = (default_config_dir() / "default.yaml").read_text()
    assert text == default_yaml(), "run: astune config defaults > default_config/default.yaml"


def test_the_file_holds_every_default() -> None:
    values = yaml.safe_load((default_config_dir() / "default.yaml").read_text())
    assert Config.model_validate(values) == Config()


def test_every_key_has_a_meaning_in_one_line() -> None:
    lines = default_yaml().splitlines()[1:]
    assert len(lines) == len(FIELDS) > len(LEAVES) > 50
    assert all(field.description and "\n" not in field.description for field in FIELDS.values())
    assert all("  # " in line for line in lines)
