"""`astune.models`: what is laid over what, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from astune.config.load import load_config
from astune.config.rules.models import begin_with, configs_of_trained, pattern_problems, whose_turn
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from tests.rows import each_row

LORA = {"lora": {"rank": 8}}
TWO = {"wolf": {}, "villager": {}}


@pytest.mark.fault(
    "Input files and settings",
    "several models, and a pattern that no agent matches, an agent that no pattern matches, or a workflow that names a "
    "model that there is not",
    "the run ends in its first step, before anything is learned, with place, key, the reason and the nearest name",
)
def test_a_pattern_that_no_agent_matches_is_named_with_the_nearest(tmp_path: Path) -> None:
    config = load(tmp_path, models=TWO, rollout={"agents": {"wolf*": "wolf", "elders": "villager"}})
    said = "no agent matches 'elders'. Did you mean 'elder'? There are: elder, wolf_1"
    assert [*pattern_problems(config, {"wolf_1", "elder"})] == [("astune.rollout.agents", said)]
    assert [*pattern_problems(config, set())] == []


def test_an_error_shows_what_a_model_has_for_itself() -> None:
    assert (
        repr(AstuneConfig(models={"wolf": {"frozen": True}, "dog": {}}).models)
        == "{'wolf': {'frozen': True}, 'dog': {}}"
    )


def load(folder: Path, **sections: Any) -> AstuneConfig:
    path = folder / "job.yaml"
    tasks = {"jsonl": {"training": {"file_path": "a.jsonl"}}}
    rollout = {"agentscope_learn_protocol": "a.py:W", **sections.pop("rollout", {})}
    path.write_text(yaml.safe_dump({"astune": {"task_reader": tasks, "model": LORA, "rollout": rollout, **sections}}))
    return load_config(path).config.astune


def test_a_run_has_one_model_without_a_name_or_those_that_are_named(tmp_path: Path) -> None:
    one = load(tmp_path)
    assert configs_of_trained(one) == {"": one} and whose_turn(one, 3) == [""]
    models = {
        "wolf": {"trainer": {"learning_rate": 0.5}, "algorithm": {"advantage": "mine.py:mean"}, "lora": {"rank": 2}},
        "villager": {"start_from": "old"},
        "ghost": {"frozen": True},
    }
    (tmp_path / "old").mkdir()
    several = load(tmp_path, models=models, trainer={"weight_decay": 0.25}, algorithm={"clip_low": 0.125})
    assert several.models["villager"].start_from == str(tmp_path / "old")
    trained = configs_of_trained(several)
    wolf, villager = trained["wolf"], trained["villager"]
    assert len(trained) == 2
    assert (wolf.trainer.learning_rate, wolf.trainer.weight_decay, wolf.algorithm.clip_low) == (0.5, 0.25, 0.125)
    assert (wolf.algorithm.advantage, wolf.model.lora.rank) == (f"{tmp_path}/mine.py:mean", 2)
    assert (villager.trainer, villager.algorithm, villager.model) == (several.trainer, several.algorithm, several.model)
    begun = {name: model.start_from for name, model in begin_with(several, Path("step_10")).models.items()}
    assert begun == {"wolf": "step_10/wolf", "villager": "step_10/villager", "ghost": None}
    turns = load(tmp_path, models=models, trainer={"update": "wolf, wolf, villager"})
    assert [whose_turn(turns, step) for step in range(4)] == [["wolf"], ["wolf"], ["villager"], ["wolf"]]


@pytest.mark.fault(
    "Input files and settings",
    "several models that cannot be: earlier versions of a whole one, a wrong key of one, a pattern for none",
    "an error with its place, the reason and the nearest name, before anything is loaded",
)
@each_row(
    ("sections", "said"),
    [
        (
            {"models": {"wolf": {"lora": {"rank": None}, "start_from": "x"}}},
            "models.wolf.start_from: it names an adapter, and this one has all its weights (lora.rank); set path",
        ),
        (
            {"models": {"wolf": {"lora": {"rank": None}}, "old": {"past_of": "wolf"}}},
            "models.old.past_of: earlier versions are kept as adapters, and 'wolf' has all its weights for itself",
        ),
        ({"models": {"wolf": {"lora": {"rank": None, "alpha": 3}}}}, "lora.alpha: there is no adapter without"),
        ({"models": {"a b": {}}}, "models: expected names of letters, digits, - and _"),
        (
            {"models": {"wolf": {}, "Wolf": {}}},
            "expected names that differ in more than capitals, as each has a folder, not",
        ),
        (
            {"models": {"wolf": {"frozn": True}}},
            "models.wolf.frozn: unknown key. Did you mean 'astune.models.wolf.frozen'",
        ),
        (
            {"models": {"wolf": {"trainer": {"learning_rat": 1}}}},
            "models.wolf.trainer.learning_rat: unknown key. Did you mean 'astune.trainer.learning_rate'",
        ),
        ({"models": {"wolf": {"algorithm": {"clip_low": "x"}}}}, "models.wolf.algorithm.clip_low: expected a number"),
        (
            {"models": {"wolf": {"trainer": {"total_steps": 5}}}},
            "trainer.total_steps: a model has no 'total_steps' of its",
        ),
        ({"models": {"wolf": {"algorithm": {"preset": "dapo"}}}}, "algorithm.preset: a model has none of its own"),
        ({"models": {"wolf": {"algorithm": {"trained_agents": ["a"]}}}}, "trained_agents: a model has none of its own"),
        (
            {"models": {"wolf": {"algorithm": {"kl_in": "reward"}}}},
            "models.wolf: astune.algorithm.kl_in: astune.algorithm.kl_beta is 0",
        ),
        ({"models": {"wolf": {"frozen": True}}}, "models: none of them learns"),
        ({"models": {**TWO, "x": {"frozen": True, "trainer": {"betas": [0, 0]}}}}, "x.trainer: it is not trained"),
        ({"models": {"wolf": {"lora": {"base": "nf4"}}}}, "lora.base is of the weights that adapters have in common"),
        ({"models": TWO, "model": {"lora": {"rank": 4, "dora": True}}}, "model.lora.dora: DoRA cannot tell the rows"),
        ({"models": TWO, "rollout": {"agents": {"w*": "wolff"}}}, "'w*' is for the model 'wolff', which astune.models"),
        (
            {"models": TWO, "rollout": {"agents": {"wolf*": "wolf", "*_1": "villager"}}},
            "rollout.agents: '*_1' and 'wolf*' both match an agent 'wolf_1', and are for 'villager' and 'wolf'",
        ),
        ({"rollout": {"agents": {"w*": "wolf"}}}, "rollout.agents: there is one model, which all agents run on"),
        ({"models": TWO, "rollout": {"engine": "vllm"}}, "rollout.engine: 'vllm' is handed one model"),
        (
            {"models": TWO, "rollout": {"auxiliary_models": {"wolf": {"base_url": "http://x/v1", "model": "m"}}}},
            "models.wolf: a model of astune.rollout.auxiliary_models has the same name",
        ),
        (
            {"models": {**TWO, "old": {"past_of": "wolff"}}},
            "old.past_of: 'wolff' is no model that is trained, which alone",
        ),
        ({"models": {**TWO, "old": {"past_of": "wolf", "lora": {"rank": 2}}}}, "old.lora: it has what 'wolf' has"),
        ({"models": {**TWO, "old": {"past_of": "wolf", "path": "x"}}}, "old.path: it has what 'wolf' has"),
        (
            {"models": {"wolf": {"size": 3}}},
            "models.wolf.size: it is of earlier versions of another model; set past_of",
        ),
        (
            {"models": {**TWO, "old": {"past_of": "wolf", "every": 5}}, "trainer": {"total_steps": 5}},
            "old.every: 'wolf' learns from 5 steps, so that only its first version would be met",
        ),
        (
            {"models": TWO, "trainer": {"update": "alternate(0)"}},
            "'alternate(0)' gives no number of steps from 1. Expected 'all'",
        ),
        ({"models": TWO, "trainer": {"update": "all, wolf"}}, "'all' stands alone. Expected 'all',"),
        ({"models": TWO, "trainer": {"update": "wolf"}}, "trainer.update: it is never the turn of villager"),
        ({"trainer": {"update": "alternate(3)"}}, "trainer.update: there is one model"),
        (
            {"models": TWO, "algorithm": {"method": "sft"}, "trainer": {"examples": "e.jsonl"}},
            "algorithm.method: 'sft' learns from examples, which do not say whose they are",
        ),
    ],
)
def test_models_that_cannot_be_are_named(tmp_path: Path, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **sections)
    assert said in str(caught.value)
