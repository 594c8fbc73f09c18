"""The arguments of AgentScope 1.0.21's tuner: the same as there, and what each means here."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from astune.config.load import load_config
from astune.errors import AstuneError, ConfigError
from astune.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    PromptTuneConfig,
    TinkerConfig,
    TunerModelConfig,
    check_judge_function,
    check_workflow_function,
    tune,
    tune_prompt,
)
from astune.tuner.keys import algorithm_keys, model_keys, task_keys
from astune.tuner.model_selection import avg_time_judge, avg_token_consumption_judge, select_model
from astune.tuner.prompt_tune import prompt_keys
from tests.rows import each_row

HERE = Path(__file__).parent
ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
MODEL = TunerModelConfig(model_path="tiny", max_model_len=512, max_tokens=32)
SFT = AlgorithmConfig(algorithm_type="sft")


async def solve(task, model): ...


async def judge(task, response): ...


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.jsonl", "test.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return DatasetConfig(path="train.jsonl")


def signatures(package):
    """In a process of its own: AgentScope's tuner would stay imported."""
    command = [sys.executable, str(HERE / "signatures.py"), package]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE.parents[1]).stdout)


def test_names_parameters_fields_and_defaults_are_those_of_agentscope():
    theirs = json.loads((HERE / "signatures.json").read_text())
    assert signatures("astune.tuner") == theirs
    if metadata.version("agentscope") == "1.0.21":
        assert signatures("agentscope.tuner") == theirs


@each_row(
    ("keys", "expected"),
    [
        (
            lambda: algorithm_keys(AlgorithmConfig(), held_out=False),
            {"advantage": "step_wise_grpo", "loss": "ppo_clip"},
        ),
        (
            lambda: algorithm_keys(AlgorithmConfig(algorithm_type="dapo", batch_size=4), held_out=False),
            {"preset": "dapo"},
        ),
        (lambda: algorithm_keys(AlgorithmConfig(algorithm_type="sft"), held_out=False), {"method": "sft"}),
        (lambda: algorithm_keys(AlgorithmConfig(eval_interval_steps=7), held_out=True), {"every": 7, "num_repeat": 8}),
        (lambda: model_keys(MODEL, "local"), {"path": "tiny", "max_model_len": 512, "max_tokens": 32}),
        (lambda: model_keys(TunerModelConfig(model_path="m", max_model_len=64), "local"), {"max_tokens": 63}),
        (
            lambda: model_keys(MODEL.model_copy(update={"enable_thinking": False}), "local"),
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        (
            lambda: model_keys(MODEL.model_copy(update={"tool_call_parser": "openai"}), "local"),
            {"tool_call_format": "harmony"},
        ),
        (lambda: model_keys(MODEL.model_copy(update={"inference_engine_num": 4}), "trinity"), {"engine_num": 4}),
        (
            lambda: model_keys(MODEL.model_copy(update={"tensor_parallel_size": 2}), "verl"),
            {"tensor_model_parallel_size": 2},
        ),
        (
            lambda: model_keys(MODEL.model_copy(update={"tinker_config": TinkerConfig(seed=3)}), "local"),
            {"backbone": "trinity", "seed": 3},
        ),
        (lambda: prompt_keys(PromptTuneConfig(optimization_level="heavy"), "Be brief."), {"rounds": 18}),
    ],
)
def test_arguments_become_keys_that_the_configuration_has(keys, expected):
    found = keys()
    ours = {key: value for key, value in found.items() if key.startswith("astune.")}
    load_config(None, arguments=ours, for_run=False)
    assert {key.rpartition(".")[2]: value for key, value in found.items()}.items() >= expected.items()


def test_data_sets_become_files_splits_or_rows(tasks):
    held_out = DatasetConfig(path="test.jsonl", total_epochs=3)
    keys, rows = task_keys(DatasetConfig(path="train.jsonl", total_epochs=3), held_out)
    assert rows == [] and keys["astune.task_reader.jsonl.validation.file_path"] == "test.jsonl"
    assert (keys["astune.trainer.total_epochs"], keys["astune.trainer.total_steps"]) == (3, None)
    keys, _ = task_keys(DatasetConfig(path="train.jsonl", total_steps=5), None)
    assert (keys["astune.trainer.total_epochs"], keys["astune.trainer.total_steps"]) == (None, 5)
    assert tasks.preview(2) == ROWS[:2]


def test_a_split_of_a_folder_is_read_by_datasets_and_beside_a_file_as_rows(tasks):
    pytest.importorskip("datasets")
    folder = Path("data")
    folder.mkdir()
    (folder / "test.jsonl").write_text(Path("test.jsonl").read_text())
    (folder / "train.jsonl").write_text(Path("train.jsonl").read_text())
    train, test = DatasetConfig(path="./data", split="train[:2]"), DatasetConfig(path="./data", split="test")
    keys, _ = task_keys(test, test)
    assert keys["astune.task_reader.huggingface.validation_split"] == "test"
    assert test.preview(1) == ROWS[:1]
    with pytest.raises(ConfigError, match="streaming"):
        train.preview(1)
    assert task_keys(tasks, test)[1] == [ROWS, ROWS]


def test_a_row_without_a_question_shows_its_first_text(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"level": 1, "problem": "6 * 7?"}\n')
    assert task_keys(DatasetConfig(path=str(path)), None)[0]["astune.task_reader.fields.query"] == "problem"


def ask(**changes):
    given = {"workflow_func": solve, "judge_func": judge, "train_dataset": DatasetConfig(path="train.jsonl")}
    return lambda: tune(**(given | {"model": MODEL} | changes))


def model(**changes):
    return ask(model=MODEL.model_copy(update=changes))


def prompt(**changes):
    async def agent(task, system_prompt): ...

    given = {"workflow": agent, "init_system_prompt": "Be brief.", "judge_func": judge}
    return lambda: tune_prompt(**(given | {"train_dataset": DatasetConfig(path="train.jsonl")} | changes))


@each_row(
    ("call", "expected"),
    [
        (ask(model=None), "model: not given"),
        (ask(train_dataset=None), "train_dataset: not given"),
        (ask(train_dataset=DatasetConfig(path="trains.jsonl")), "trains.jsonl"),
        (ask(auxiliary_models={"critic": MODEL}), "auxiliary_models: got critic"),
        (ask(algorithm=AlgorithmConfig(algorithm_type="multi_step_grop")), "Did you mean 'multi_step_grpo'?"),
        (
            ask(algorithm=AlgorithmConfig(algorithm_type="sft"), eval_dataset=DatasetConfig(path="a")),
            "eval_dataset: sft",
        ),
        (ask(monitor_type="wand"), "monitor_type"),
        (ask(config_path="trinity.yaml"), "config_path: trinity.yaml has no section `astune:`"),
        (model(inference_engine_num=4), "model.inference_engine_num: got 4"),
        (model(tensor_parallel_size=2), "model.tensor_parallel_size: got 2"),
        (model(tool_call_parser="hermess"), "Did you mean 'hermes'?"),
        (model(reasoning_parser="granite"), "model.reasoning_parser: got 'granite'"),
        (prompt(config=PromptTuneConfig(lm_model_name="dashscop/qwen-plus")), "Did you mean 'dashscope'?"),
        (prompt(config=PromptTuneConfig(eval_display_table=9)), "config.eval_display_table: got 9"),
    ],
)
def test_what_cannot_be_meant_here_is_refused_by_name(call, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("trinity.yaml").write_text("project: P\nbuffer: {batch_size: 32}\n")
    Path("train.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(AstuneError) as error:
        call()
    assert expected in str(error.value)


async def with_tools(task, model, tools): ...


async def with_any(task, model, **more): ...


async def without_model(task): ...


async def episode_judge(task, episode): ...


@each_row(
    ("check", "function", "expected"),
    [
        (check_workflow_function, with_tools, "takes 'tools'"),
        (check_workflow_function, with_any, "takes '**more'"),
        (check_workflow_function, without_model, "lacks 'model'"),
        (check_judge_function, episode_judge, "takes 'episode'"),
    ],
)
def test_functions_with_other_parameters_are_refused(check, function, expected):
    with pytest.raises(ValueError) as error:
        check(function)
    assert expected in str(error.value)


async def test_judges_of_models_make_small_figures_great_rewards():
    response = {"response": "42", "metrics": {"execution_time": 1.5, "usage": {"total_tokens": 30}}}
    assert (await avg_time_judge({}, response)).metrics == {"avg_time_seconds": 1.5}
    assert (await avg_token_consumption_judge({}, response)).reward == -30.0
    with pytest.raises(ValueError, match="execution_time"):
        await avg_time_judge({}, "42")


async def test_select_model_refuses_one_model_and_what_is_none(tasks):
    given = {"workflow_func": solve, "judge_func": avg_time_judge, "train_dataset": DatasetConfig(path="train.jsonl")}
    with pytest.raises(ValueError, match="two or more"):
        await select_model(**given, candidate_models=["one"])
    with pytest.raises(ConfigError, match=r"got 'one'; expected a chat model object of AgentScope"):
        await select_model(**given, candidate_models=["one", "two"])
