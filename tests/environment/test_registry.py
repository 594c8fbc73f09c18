"""From a spec and options to an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.environment.registry import BUILT_IN, load_environment, spec_of
from astune.errors import ConfigError, MissingDependency, PluginError
from tests.rows import each_row

ROOMS = f"{Path(__file__).parent}/rooms.py:Rooms"


def test_a_class_of_ones_own_gets_its_options() -> None:
    environment = load_environment(ROOMS, {"doors": 3, "colour": "red"})
    assert (environment.env_type, vars(environment)["doors"], vars(environment)["colour"]) == ("rooms", 3, "red")


@pytest.mark.parametrize("name", ["gymnasium", "countdown", "apps"])
def test_what_ships_is_named_as_it_is_asked_for(name: str) -> None:
    if not BUILT_IN[name].installed:
        with pytest.raises(MissingDependency, match="pip install"):
            load_environment(spec_of(name), {})
        return
    environment = load_environment(spec_of(name), {})
    assert environment.env_type == spec_of(name)
    environment.close()


@each_row(
    ("spec", "options", "message"),
    [
        (ROOMS, {"dors": 3}, "no option 'dors'. Did you mean 'doors'? Its options: doors=1, colour='white'"),
        ("countdown", {"nonsense": 3}, "no option 'nonsense'. Its options: "),
        ("gymnasium", {}, "write it as 'gymnasium:FrozenLake-v1'"),
        ("gymnasium:", {}, "write it as 'gymnasium:FrozenLake-v1'"),
        ("countdown:4", {}, "write it as 'countdown'"),
        ("gymnasium:FrozenLake-v1", {"env_id": "Taxi-v3"}, "option 'env_id' is what stands after the colon"),
    ],
)
def test_wrong_options_are_told_with_those_there_are(spec: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_environment(spec, options)
    assert message in str(told.value) and repr(spec) in str(told.value)


@each_row(
    ("code", "error", "message"),
    [
        ("class E: pass", PluginError, "derived from astune.environment.Environment"),
        ("E = 3", PluginError, "derived from astune.environment.Environment"),
        ("class E(Environment): pass", PluginError, "lacks create, task_ids"),
        (
            "class E(Environment):\n    task_ids = create = None\n    def __init__(self): raise OSError('no disk')",
            ConfigError,
            "making it raised OSError: no disk",
        ),
        (
            "class E(Environment):\n    task_ids = create = None\n    def __init__(self, size): pass",
            ConfigError,
            "option 'size' is missing. Its options: size",
        ),
    ],
)
def test_a_plug_in_that_is_no_environment_is_told(
    tmp_path: Path, code: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "mine.py").write_text(f"from astune.environment import Environment\n{code}\n")
    with pytest.raises(error, match=r"environment '.*mine\.py:E'") as told:
        load_environment(f"{tmp_path}/mine.py:E", {})
    assert message in str(told.value)


def test_a_class_without_a_name_gets_that_of_its_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from astune.environment import Environment\nclass E(Environment):\n    task_ids = create = None\n"
    )
    assert load_environment(f"{tmp_path}/mine.py:E", {}).env_type == f"{tmp_path}/mine.py:E"


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(PluginError, match=r"Did you mean 'countdown'.*gymnasium:FrozenLake-v1"):
        load_environment("countdwn", {})
