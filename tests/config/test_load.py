"""Where values come from and how they are read."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.backbone.base import check_keys
from astune.backbone.debug import DebugBackbone
from astune.backbone.local.engine import LocalBackbone
from astune.config.keys import FIELDS, LEAVES
from astune.config.load import LoadedConfig, Origin, load_config
from astune.config.render import annotate, save_config
from astune.config.schema import Config
from astune.config.source import OLDER_KEYS
from astune.errors import ConfigError
from tests.rows import each_row

BASE = """\
astune:
  task_reader:
    jsonl:
      training: {file_path: data/train.jsonl}
  rollout:
    agentscope_learn_protocol: agent.py:MyWorkflow
"""


def load(folder: Path, text: str, *overrides: str, **options: object) -> LoadedConfig:
    path = folder / "job.yaml"
    path.write_text(BASE + text)
    return load_config(path, overrides, **options)  # type: ignore[arg-type]


def test_values_come_from_defaults_then_file_then_command_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, "  seed: 7\n  trainer:\n    total_steps: 3\n", "astune.trainer.total_steps=9")
    astune = loaded.config.astune
    assert (astune.seed, astune.trainer.total_steps, astune.trainer.tasks_per_step) == (7, 9, 8)
    assert loaded.origins["astune.seed"] == Origin(tmp_path / "job.yaml", 7)
    assert loaded.origins["astune.trainer.total_steps"] == "command line"
    assert loaded.origins["astune.trainer.tasks_per_step"] == "default"


def test_keys_of_earlier_versions_are_read_with_a_note_for_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not {*OLDER_KEYS} & {*FIELDS}
    prompts = "  prompts: {prompt_price: 1, completion_price: 2}\n"
    rubrics = "  rubrics: {proposals: 4, dev_share: 0.2, test_share: 0.2}\n"
    loaded = load(tmp_path, f"  monitor: {{tensorboard: false}}\n{prompts}{rubrics}")
    assert loaded.config.astune.monitor.trackers == ()
    assert loaded.origins["astune.monitor.trackers"] == Origin(tmp_path / "job.yaml", 7)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(OLDER_KEYS)
    assert told[0] == (
        f"{tmp_path / 'job.yaml'}:7: astune.monitor.tensorboard is now astune.monitor.trackers, and is read as []"
    )
    assert "astune.rubrics.proposals is no key any more, and is not read: three criteria" in told[3]

    loaded = load(tmp_path, "", "astune.monitor.tensorboard=true", "astune.monitor.trackers=[wandb]")
    assert loaded.config.astune.monitor.trackers == ("wandb",)
    assert "is not read, as astune.monitor.trackers, its newer name, is there too" in caplog.records[-1].getMessage()


def test_the_keys_of_another_program_keep_their_places(tmp_path: Path) -> None:
    text = "trinity:\n  cluster:\n    node_num: ${astune.trainer.tasks_per_step}\n    gpu_per_node: 4\n"
    loaded = load(tmp_path, text, "trinity.cluster.gpu_per_node=8", "trinity.model.tinker.enable=true")
    assert loaded.config.trinity == {
        "cluster": {"node_num": 8, "gpu_per_node": 8},
        "model": {"tinker": {"enable": True}},
    }
    assert loaded.origins["trinity.cluster.node_num"] == Origin(tmp_path / "job.yaml", 9)
    assert loaded.origins["trinity.cluster.gpu_per_node"] == "command line"
    assert loaded.origins["trinity.model.tinker.enable"] == "command line"
    assert "trinity" in loaded.set_by_user() and "trinity" not in load(tmp_path, "").set_by_user()


def test_the_keys_of_another_program_are_shown_one_in_a_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, "trinity: {cluster: {node_num: 2, x: [1]}, 'a b': {}}\n")
    shown = annotate(loaded.config, lambda key: str(loaded.origins[key]) if key in loaded.origins else "")
    lines = [line.split() for line in shown.partition("\ntrinity:")[2].partition("\nverl:")[0].splitlines()[1:]]
    place = f"{tmp_path / 'job.yaml'}:7"
    assert lines == [
        ["cluster:", "#", place],
        ["node_num:", "2", "#", place],
        ["x:", "[1]", "#", place],
        ["a", "b:", "{}", "#", place],
    ]


def test_local_and_debug_ignore_the_keys_of_another_program_and_say_so(tmp_path: Path) -> None:
    text = "  synchronizer: {style: dynamic_by_trainer}\ntrinity: {cluster: {node_num: 2}}\n"
    assert check_keys(DebugBackbone(), load(tmp_path, text, backbone="debug")) == ["astune.synchronizer", "trinity"]
    assert check_keys(LocalBackbone(), load(tmp_path, text, "astune.synchronizer.style=fixed")) == ["trinity"]


ASYNC = "style=async max_staleness=1"


@each_row("backbone", ["local", "verl"])
@each_row(
    ("values", "key", "said"),
    [
        ("style=dynamic_by_trainer", "style", "got 'dynamic_by_trainer', which only Trinity has"),
        ("interval=2", "interval", "got 2, which only Trinity has; expected 1, or --backbone=trinity"),
        (f"{ASYNC} offset=1", "offset", "got 1, which only Trinity has; expected 0, or --backbone=trinity"),
        ("max_staleness=0", "max_staleness", "got 0, but with style 'fixed' rollouts wait for training"),
        ("style=async", "max_staleness", "not set; with style 'async' it says how many steps"),
        (f"{ASYNC} patience=3", "patience", "astune.synchronizer.quorum is 1, so that every episode is waited for"),
        (f"{ASYNC} algorithm.loss=reinforce", "algorithm.importance", "'none' takes tokens of older weights"),
        ("rollout.context.keep=2", "rollout.context.keep", "astune.rollout.context.strategy 'none' does not read it"),
        (
            "rollout.context.strategy=restart rollout.context.model=gpt",
            "rollout.context.model",
            "got 'gpt', which is none of astune.rollout.auxiliary_models. There are: none",
        ),
        (
            "rollout.context.strategy=discard rollout.context.at=2048 model.max_model_len=2048",
            "rollout.context.at",
            "got 2048 tokens, and astune.model.max_model_len is 2048: the context would be full before",
        ),
        ("style=async algorithm.method=sft", "style", "the method 'sft' plays no episodes"),
    ],
)
def test_a_loop_that_is_asked_for_what_it_cannot_do_says_so(
    tmp_path: Path, backbone: str, values: str, key: str, said: str
) -> None:
    overrides = ["astune." + ("" if "." in each.split("=")[0] else "synchronizer.") + each for each in values.split()]
    key = key if "." in key else f"synchronizer.{key}"
    with pytest.raises(ConfigError, match=rf"astune\.{re.escape(key)}: {re.escape(said)}"):
        load(tmp_path, "", *overrides, backbone=backbone)


@pytest.mark.parametrize(("key", "value"), [("style", "async"), ("interval", "2"), ("offset", "1")])
def test_trinity_takes_what_the_loop_refuses(tmp_path: Path, key: str, value: str) -> None:
    loaded = load(tmp_path, "", f"astune.synchronizer.{key}={value}", backbone="trinity")
    assert loaded.differs_from_default(f"astune.synchronizer.{key}")


def test_what_rollouts_beside_training_cannot_have_on_local(tmp_path: Path) -> None:
    overrides = [*(f"astune.synchronizer.{each}" for each in ASYNC.split()), "astune.model.lora.rank=8"]
    load(tmp_path, "", *overrides, "astune.models={a: {}, b: {past_of: a}}")
    with pytest.raises(ConfigError, match=r"astune\.model\.lora\.base: got 'nf4', and .*'async' two threads"):
        load(tmp_path, "", *overrides, "astune.model.lora.base=nf4")


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    assert set(load(tmp_path, "").origins) == set(LEAVES)


def test_set_by_user_names_file_and_command_line_only(tmp_path: Path) -> None:
    loaded = load(tmp_path, "  seed: 7\n", "astune.debug.num_tasks=2")
    assert set(loaded.set_by_user()) == {
        "astune.task_reader.jsonl.training.file_path",
        "astune.rollout.agentscope_learn_protocol",
        "astune.seed",
        "astune.debug.num_tasks",
    }


@each_row(
    ("override", "said"),
    [
        ("rollout.workspace={type: AstuneSandbox, hosts: [a b]}", "rollout.workspace.hosts.0: expected hosts that"),
        ("tools.servers={notes: {url: localhost/mcp}}", "tools.servers.notes.url: expected instead of a command: the"),
        ("online.serve.engine={base_url: localhost, model: m}", "online.serve.engine.base_url: expected of its OpenAI"),
        ("model.device=gpu", "model.device: expected 'auto' (CUDA if there is one)"),
    ],
)
def test_a_text_of_the_wrong_form_is_told_what_the_key_means(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"command line: astune.{said}")):
        load(tmp_path, "", f"astune.{override}")


@each_row("written", ["1e-6", "1E-6", "1.0e-6", "'1e-6'", "0.000001"])
def test_scientific_notation_is_a_number(tmp_path: Path, written: str) -> None:
    assert load(tmp_path, f"  trainer:\n    learning_rate: {written}\n").config.astune.trainer.learning_rate == 1e-6
    loaded = load(tmp_path, "", f"astune.trainer.learning_rate={written}")
    assert loaded.config.astune.trainer.learning_rate == 1e-6


def test_off_and_dates_stay_text(tmp_path: Path) -> None:
    astune = load(tmp_path, "  monitor: {progress: off}\n  experiment_name: 2024-01-01\n").config.astune
    assert (astune.monitor.progress, astune.experiment_name) == ("off", "2024-01-01")


def test_interpolation_reads_the_environment_and_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTUNE_TEST_STEPS", "12")
    loaded = load(
        tmp_path,
        "  trainer: {total_steps: '${oc.env:ASTUNE_TEST_STEPS}'}\n  project_name: ${astune.backbone}-${astune.seed}\n",
    )
    assert loaded.config.astune.trainer.total_steps == 12
    assert loaded.config.astune.project_name == "local-42"


def test_backbone_and_resume_options_win_over_the_file(tmp_path: Path) -> None:
    loaded = load(tmp_path, "  backbone: local\n", "astune.backbone=local", backbone="debug", resume=True)
    assert loaded.config.astune.backbone == "debug"
    assert loaded.config.astune.resume is True
    assert loaded.origins["astune.backbone"] == loaded.origins["astune.resume"] == "command line"


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "my_model").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = "  model: {path: my_model}\n  task_judge: {judge_protocol: ../judges/mine.py->Judge}\n"
    astune = load(tmp_path / "conf", text).config.astune
    assert astune.task_reader.jsonl.training.file_path == str(tmp_path / "conf/data/train.jsonl")
    assert astune.rollout.agentscope_learn_protocol == f"{tmp_path}/conf/agent.py:MyWorkflow"
    assert astune.task_judge.judge_protocol == f"{tmp_path}/judges/mine.py->Judge"
    assert astune.model.path == str(tmp_path / "conf/my_model")


def test_paths_on_the_command_line_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    loaded = load(tmp_path / "conf", "", "astune.task_reader.jsonl.training.file_path=t.jsonl")
    assert loaded.config.astune.task_reader.jsonl.training.file_path == str(tmp_path / "here/t.jsonl")


@pytest.mark.parametrize("name", ["tiny", "Qwen/Qwen3-0.6B"])
def test_model_names_that_are_no_folder_stay(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, f"  model: {{path: {name}}}\n").config.astune.model.path == name


def test_an_overlay_lies_between_defaults_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "debug.yaml").write_text("astune:\n  seed: 1\n  rollout: {max_turns: 3}\n")
    monkeypatch.setattr("astune.config.load.default_config_dir", lambda: tmp_path)
    loaded = load(tmp_path, "  seed: 2\n", backbone="debug")
    assert (loaded.config.astune.seed, loaded.config.astune.rollout.max_turns) == (2, 3)
    assert loaded.origins["astune.rollout.max_turns"] == Origin(tmp_path / "debug.yaml", 3)
    assert "astune.rollout.max_turns" not in loaded.set_by_user()
    assert load(tmp_path, "").config.astune.rollout.max_turns == 20


def test_yaml_merge_keys_and_anchors_work(tmp_path: Path) -> None:
    text = "  trainer: &t {warmup_steps: 1, total_steps: 5}\n  debug: {num_tasks: 2}\n"
    (tmp_path / "job.yaml").write_text(
        BASE.replace("astune:", "astune:\n  model: {chat_template_kwargs: {a: &x {b: 1}, c: {<<: *x, b: 2}}}") + text
    )
    loaded = load_config(tmp_path / "job.yaml")
    assert loaded.config.astune.model.chat_template_kwargs == {"a": {"b": 1}, "c": {"b": 2}}


text_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
interpolation_like = st.sampled_from(
    ["${", "\\", "\\${x}", "${astune.seed}", "\\\\${", "off", "null", "1e-6", "a: b", "#"]
)


@settings(max_examples=50)  # each writes and loads a whole configuration
@given(
    name=st.lists(text_values | interpolation_like, max_size=4).map("".join),
    seed=st.integers(0, 2**40),
    rate=st.floats(1e-12, 1.0),
    kwargs=st.dictionaries(st.text("abc", min_size=1), text_values | interpolation_like | st.booleans(), max_size=3),
    trinity=st.dictionaries(
        st.sampled_from(["a", "b c", "off", "1", "#"]),
        st.recursive(
            text_values | interpolation_like | st.none(), lambda inner: st.dictionaries(st.text("ab: '#"), inner)
        ),
    ),
)
def test_a_saved_config_loads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    seed: int,
    rate: float,
    kwargs: dict[str, object],
    trinity: dict[str, object],
) -> None:
    config = Config.model_validate(
        {
            "trinity": trinity,
            "astune": {
                "experiment_name": name,
                "seed": seed,
                "model": {"chat_template_kwargs": kwargs},
                "trainer": {"learning_rate": rate},
                "rollout": {"agentscope_learn_protocol": "package.module:Name"},
                "task_reader": {"jsonl": {"training": {"file_path": "/data/train.jsonl"}}},
            },
        }
    )
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    save_config(config, path)
    assert load_config(path).config == config


def test_a_config_cannot_be_changed_after_loading(tmp_path: Path) -> None:
    config = load(tmp_path, "").config
    with pytest.raises(ValueError, match="frozen"):
        config.astune.seed = 1
    with pytest.raises(ConfigError):
        load(tmp_path, "  seed: -1\n")
