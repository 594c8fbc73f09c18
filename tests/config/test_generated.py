"""What is generated from the schema says the same as the schema."""

from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from astune.config.keys import FIELDS, LEAVES, fates
from astune.config.render import default_yaml
from astune.config.schema import Config
from astune.config.section import LOOP, Fate, OnTrinity, OnVerl
from astune.plugins import load_plugin
from astune.support.resources import default_config_dir

ROOT = Path(__file__).parents[2]


def test_every_generated_file_equals_the_schema() -> None:
    generate_files = load_plugin(f"{ROOT / 'docs' / 'write_tables.py'}:generate_files", kind="script")
    generated = {path.relative_to(ROOT): text for path, text in generate_files()}
    assert len(generated) == 10
    differ = [path for path, text in generated.items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert differ == [], "run: make docs"


def test_the_file_holds_every_default() -> None:
    values = yaml.safe_load((default_config_dir() / "default.yaml").read_text())
    assert Config.model_validate(values) == Config()


def test_every_key_has_a_meaning_in_one_line() -> None:
    lines = default_yaml().splitlines()[1:]
    assert len(lines) == len(FIELDS) > len(LEAVES) > 50
    assert all(field.description and "\n" not in field.description for field in FIELDS.values())
    assert all("  # " in line for line in lines)


def test_a_key_that_says_nothing_has_the_fate_of_its_section() -> None:
    verl, trinity = fates(OnVerl), fates(OnTrinity)
    assert verl["astune.rollout.max_turns"] == OnVerl(ours=LOOP)
    assert "has a critic" in trinity["astune.algorithm.critic.gamma"].unsupported
    assert trinity["astune.rollout.num_repeat"].methods == trinity["astune.rollout.max_turns"].methods == ("rl",)
    assert trinity["astune.seed"].methods == ("rl", "sft", "dpo")


def test_a_key_of_which_nothing_says_what_becomes_of_it_is_an_error_by_name() -> None:
    class OnAnother(Fate):
        engine: ClassVar[str] = "another"

    with pytest.raises(TypeError, match=r"astune.project_name: say in its field what becomes of it on another: "):
        fates(OnAnother)
