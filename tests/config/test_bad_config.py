"""Every mistake names its file, line and key, says what was expected, and loses no other mistake."""

from pathlib import Path

import pytest

from astune.config.load import load_config
from astune.errors import ConfigError
from tests.rows import each_row

GOOD = """\
astune:
  task_reader: {jsonl: {training: {file_path: train.jsonl}}}
  rollout: {agentscope_learn_protocol: 'agent.py:W'}
"""


def complaint(path: Path, text: str, *overrides: str) -> str:
    """The error of a file with `text`; its path is written `F` to keep the tests short."""
    path = path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value).replace(str(path), "F")


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"dmo\.yaml: no such file\. Did you mean 'demo\.yaml'\?"):
        load_config(tmp_path / "dmo.yaml")
    with pytest.raises(ConfigError, match="there is no folder"):
        load_config(tmp_path / "nowhere" / "demo.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)


@pytest.mark.fault(
    "Input files and settings",
    "a mistake in the configuration file",
    "an error that names file, line and key, and the nearest name",
)
@each_row(
    ("text", "message"),
    [
        ("", "F: the file is empty; expected a section 'astune:'"),
        ("# nothing\n", "F: the file is empty; expected a section 'astune:'"),
        ("\n- a\n", "F:2: expected a section 'astune:', got a list"),
        ("hello\n", "F:1: expected a section 'astune:', got a single value"),
        ("astune:\n  seed: [1\n  x: 2\n", "F:3:4: not valid YAML: expected ',' or ']', but got ':'"),
        ("astune:\n\tseed: 1\n", "F:2:1: not valid YAML: found character '\\t' that cannot start any token"),
        ("astune: \x07\n", "F: not valid YAML: unacceptable character #x0007"),
        ("astune: !!python/object:os.system x\n", "F:1:9: not valid YAML: could not determine a constructor"),
        (GOOD + "  seed: 1\n  seed: 2\n", "F:5: astune.seed: stands twice, first in line 4"),
        (GOOD + "  1: 2\n", "F:4: astune.1: a key must be text; put it in quotes"),
        (GOOD + "  sed: 1\n", "F:4: astune.sed: unknown key. Did you mean 'astune.seed'?"),
        (
            GOOD + "  debug:\n    learning_rate: 1\n",
            "F:5: astune.debug.learning_rate: unknown key. Did you mean 'astune.trainer.learning_rate'?",
        ),
        (
            GOOD + "  debug:\n    xyz: 1\n",
            "F:5: astune.debug.xyz: unknown key. astune.debug has: model, endpoints, split, tasks, index",
        ),
        (GOOD + "xyz:\n  x: 1\n", "F:4: xyz: unknown key. The top level has: astune, trinity, verl"),
        (GOOD + "trinity: 1\n", "F:4: trinity: expected a section of keys and values, got 1"),
        (GOOD + "trinity:\n  a: ${astune.sed}\n", "F:5: trinity.a: in ${...}: Interpolation key 'astune.sed'"),
        (
            GOOD + "  synchronizer: {style: fixd}\n",
            "F:4: astune.synchronizer.style: expected 'fixed', 'async', 'dynamic_by_explorer' or "
            "'dynamic_by_trainer', got 'fixd'. Did you mean 'fixed'?",
        ),
        (GOOD + "trainer:\n  total_steps: 1\n", "F:4: trainer: unknown key. Did you mean 'astune.trainer'?"),
        (
            GOOD + "astune.seed: 1\n",
            "F:4: astune.seed: a key with dots; write it as sections inside each other",
        ),
        (GOOD + "  seed: ten\n", "F:4: astune.seed: expected a whole number, got 'ten'"),
        (GOOD + "  seed: true\n", "F:4: astune.seed: expected a value other than true or false, got True"),
        (GOOD + "  seed: 1.5\n", "F:4: astune.seed: expected a whole number, got 1.5"),
        (GOOD + "  seed: -1\n", "F:4: astune.seed: expected greater than or equal to 0, got -1"),
        (GOOD + "  project_name: 3\n", "F:4: astune.project_name: expected text (put it in quotes), got 3"),
        (GOOD + "  resume: maybe\n", "F:4: astune.resume: expected true or false, got 'maybe'"),
        (
            GOOD + "  monitor:\n",
            "F:4: astune.monitor: expected a section with check_invariants, trackers, tracker_episodes, wandb, ",
        ),
        (
            GOOD + "  model:\n    dtype: float23\n",
            "F:5: astune.model.dtype: expected 'auto', 'float32' or 'bfloat16', got 'float23'. Did you mean 'float32'?",
        ),
        (
            GOOD + "  model: {device: gpu}\n",
            "F:4: astune.model.device: expected 'auto' (CUDA if there is one), 'cpu', 'cuda' or 'cuda:N', got 'gpu'",
        ),
        (
            GOOD + "  model: {clock: no}\n",
            "F:4: astune.model.clock: expected a time, as 2026-01-31T12:00, got 'no'",
        ),
        (
            GOOD + "  model: {clock: 2026-01-31T12:00Z}\n",
            "F:4: astune.model.clock: expected a time without a zone, as 2026-01-31T12:00, got '2026-01-31T12:00Z'",
        ),
        (GOOD + "  trainer:\n    learning_rate: .inf\n", "F:5: astune.trainer.learning_rate: expected a finite number"),
        (GOOD + "  trainer:\n    betas: 1\n", "F:5: astune.trainer.betas: expected a list, got 1"),
        (GOOD + "  trainer:\n    betas: [0.9]\n", "F:5: astune.trainer.betas: too few values, got [0.9]"),
        (GOOD + "  trainer:\n    betas: [0.9, x]\n", "F:5: astune.trainer.betas.1: expected a number, got 'x'"),
        (
            GOOD + "  seed: ${oc.env:ASTUNE_NO_SUCH_NAME}\n",
            "F:4: astune.seed: in ${...}: Environment variable 'ASTUNE_NO_SUCH_NAME' not found",
        ),
        (GOOD + "  seed: ${astune.sed}\n", "F:4: astune.seed: in ${...}: Interpolation key 'astune.sed' not found"),
        (GOOD + "  seed: ${\n", "F:4: astune.seed: in ${...}: no viable alternative"),
        ("astune: 3\n", "F:1: astune: expected a section with project_name"),
    ],
)
def test_a_mistake_in_the_file_is_explained_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert complaint(tmp_path, text).startswith(message)


def test_a_file_that_is_not_text_is_explained(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"astune: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"job\.yaml: not a text file in UTF-8"):
        load_config(tmp_path / "job.yaml")


@each_row(
    ("override", "message"),
    [
        ("astune.seed", "command line: 'astune.seed': expected key=value, as astune.trainer.total_steps=10"),
        ("=1", "command line: '=1': expected key=value"),
        ("astune..seed=1", "command line: 'astune..seed=1': expected key=value"),
        ("astune.trainer.betas=[1", "command line: astune.trainer.betas: cannot read the value '[1': expected"),
        ("astune.seed=x", "command line: astune.seed: expected a whole number, got 'x'"),
        ("astune.trainer={total_steps: 1, total_steps: 2}", "command line: astune.trainer.total_steps: stands twice"),
        ("astune.seed.x=1", "command line: astune.seed: expected a whole number, got {'x': 1}"),
        ("trainer.total_steps=1", "command line: trainer: unknown key. Did you mean 'astune.trainer'?"),
        (
            "astune.trainer.total_stps=1",
            "command line: astune.trainer.total_stps: unknown key. Did you mean 'astune.trainer.total_steps'?",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(tmp_path: Path, override: str, message: str) -> None:
    assert complaint(tmp_path, GOOD, override).startswith(message)


@each_row(
    ("text", "message"),
    [
        ("astune:\n  task_reader: {jsonl: {training: {file_path: t}}}\n", "agentscope_learn_protocol: not set"),
        ("astune:\n  rollout: {agentscope_learn_protocol: 'a.py:W'}\n", "training.file_path: not set"),
        (
            "astune:\n  task_reader: {type: huggingface}\n  rollout: {agentscope_learn_protocol: 'a.py:W'}\n",
            "huggingface.dataset_path: not set",
        ),
        (
            GOOD + "  trainer:\n    total_steps: null\n",
            "F:5: astune.trainer.total_steps: neither total_steps nor total_epochs",
        ),
        (
            GOOD + "  synchronizer: {interval: 2}\n",
            "F:4: astune.synchronizer.interval: got 2, which only Trinity has; expected 1, or --backbone=trinity",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', workspace: {warm: 4}"),
            "F:3: astune.rollout.workspace.warm: there is no workspace: set astune.rollout.workspace.type",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', workspace: {type: none, limits: {files: 4}}"),
            "F:3: astune.rollout.workspace.limits: none knows no limits",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', workspace: {type: none, hosts: [pypi.org]}"),
            "F:3: astune.rollout.workspace.hosts: none knows no hosts",
        ),
        (
            GOOD.replace("'agent.py:W'", "'a.py:W', workspace: {type: AstuneSandbox, isolation: run, artifacts_mb: 4}"),
            "F:3: astune.rollout.workspace.artifacts_mb: a workspace of a run has files of several episodes",
        ),
        (GOOD + "  model: {lora: {alpha: 8}}\n", "F:4: astune.model.lora.alpha: there is no adapter without"),
        (GOOD + "  trainer: {updates_per_step: 65}\n", "F:4: astune.trainer.updates_per_step: 65 updates"),
        (GOOD + "  trainer: {betas: [0.9, 1.0]}\n", "F:4: astune.trainer.betas: expected two numbers"),
        (GOOD + "  evaluation: {every: 5}\n", "F:4: astune.evaluation.every: needs held-out tasks"),
        (
            GOOD + "  backbone: debug\n  debug: {split: validation}\n",
            "F:5: astune.debug.split: 'validation' needs held-out tasks",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', temperature: 0"),
            "F:3: astune.rollout.temperature: 0 makes all attempts at a task equal",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', temperature: 1.0e-6"),
            "F:3: astune.rollout.temperature: 1e-06 makes all attempts at a task equal",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', top_p: 1.0e-50"),
            "F:3: astune.rollout.top_p: 1e-50 makes all attempts at a task equal",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', top_k: 1"),
            "F:3: astune.rollout.top_k: 1 makes all attempts at a task equal",
        ),
        (GOOD.replace("'agent.py:W'", "'agent.py:W', temperature: 1.0e+300"), "F:3: astune.rollout.temperature: "),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', num_repeat: 1"),
            "F:3: astune.rollout.num_repeat: 1 attempt at each task has nothing to be compared with",
        ),
        (
            GOOD.replace("'agent.py:W'", "'agent.py:W', max_tokens: 512") + "  model: {max_model_len: 512}\n",
            "F:3: astune.rollout.max_tokens: 512 tokens of answer leave no room for a prompt",
        ),
    ],
)
def test_values_that_cannot_work_together_are_explained(tmp_path: Path, text: str, message: str) -> None:
    assert message in complaint(tmp_path, text)


JUDGES = [
    ("judge_protocol: [{judge: a.py:f, weigth: 2}]", "judge_protocol: expected a list of {judge, weight}, of which"),
    ("judge_protocol: [{judge: a.py:f, weight: x}]", "expected a list of {judge: name, weight: number}, of which"),
    ("judge_protocol: []", "judge_protocol: expected the name of a judge, or a list of {judge, weight}, got []"),
    ("judge_protocol: 3", "judge_protocol: expected the name of a judge, or a list of {judge, weight}, got 3"),
    ("judge_protocol: LlmAsJudge", "llm.models: not set; LlmAsJudge asks other models. Expected a list such as"),
    ("judge_protocol: [{judge: MathAnswerAsJudge}, {judge: LlmAsJudge}]", "llm.models: not set; LlmAsJudge asks"),
    ("{judge_protocol: RubricsAsJudge, llm: {models: [{base_url: 'http://x/v1', model: m}]}}", "rubrics.file: not set"),
    ("llm: {max_opponents: 3}", "llm.max_opponents: only mode 'pairwise' has opponents, and the mode is 'pointwise'"),
    ("llm: {votes: 3}", "llm.temperature: 0 makes all 3 votes equal; expected 0.01 or more"),
    ("llm: {criteria: {good: {txt: x}}}", "criteria.good: expected a text, or a section with text and any of min, max"),
    (
        "llm: {criteria: {good: {text: x, min: 3, max: 3}}}",
        "criteria.good: expected min below max, got min 3",
    ),
    (
        "llm: {models: [{base_url: 'http://x/v1', model: m, price: 1}]}",
        "models.0: expected base_url, model and any",
    ),
    (
        "llm: {mode: pairwize}",
        "or 'listwise', got 'pairwize'. Did you mean 'pairwise'",
    ),
]


@each_row(("judge", "expected"), JUDGES)
@each_row("for_run", [True, False])
def test_what_is_wrong_with_a_judge_is_said_with_its_line(
    judge: str, expected: str, for_run: bool, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    section = judge if judge.startswith("{") else f"{{{judge}}}"
    path.write_text(f"{GOOD}  task_judge: {section}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, for_run=for_run)
    assert str(caught.value).startswith(f"{path}:4: astune.task_judge.")
    assert expected in str(caught.value)


READERS = [
    (
        "jsonl: {training: {file_path: a.jsonl}}, split_seed: 3",
        "split_seed: draws what astune.task_reader.validation_fraction holds out, which is not set",
    ),
    (
        "jsonl: {training: {file_path: a.jsonl}, validation: {file_path: b.jsonl}}, validation_fraction: 0.1",
        "validation_fraction: the held-out tasks come from astune.task_reader.jsonl.validation.file_path",
    ),
    (
        "type: huggingface, huggingface: {dataset_path: o/n, streaming: true}",
        "max_training_tasks: not set; a stream (astune.task_reader.huggingface.streaming) has no end that is known",
    ),
    (
        "type: env_service, env_service: {env_url: 'http://h:1', serve: countdown}",
        "env_service.serve: the service at env_url http://h:1 runs the environments; take one of the two out",
    ),
    (
        "type: env_service, env_service: {env_url: 'http://h:1', options: {tasks: 3}}",
        "env_service.options: they are for the environment that astune.task_reader.env_service.serve names",
    ),
    ("env_service: {env_url: 'h:1'}", "env_service.env_url: expected"),
    ("validation_fraction: 1.0, jsonl: {training: {file_path: a.jsonl}}", "validation_fraction: expected"),
]


@each_row(("reader", "expected"), READERS)
@each_row("for_run", [True, False])
def test_what_is_wrong_with_a_reader_is_said_with_its_line(
    reader: str, expected: str, for_run: bool, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"astune:\n  rollout: {{agentscope_learn_protocol: 'agent.py:W'}}\n  task_reader: {{{reader}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, for_run=for_run)
    assert f"{path}:3: astune.task_reader." in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("reader", "key"),
    [
        ("type: reasoning_gym", "reasoning_gym.datasets"),
        ("type: env_service", "env_service.env_url"),
        ("type: huggingface", "huggingface.dataset_path"),
    ],
)
def test_a_run_needs_a_source_of_tasks(reader: str, key: str, tmp_path: Path) -> None:
    text = f"astune:\n  rollout: {{agentscope_learn_protocol: 'agent.py:W'}}\n  task_reader: {{{reader}}}\n"
    assert f"astune.task_reader.{key}: not set; task_reader.type is" in complaint(tmp_path, text)


def test_the_command_line_exchanges_the_service_of_a_file_for_another(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("astune: {task_reader: {type: env_service, env_service: {serve: apps, options: {tasks: 3}}}}\n")
    service = "astune.task_reader.env_service"
    exchanged = [f"{service}.serve=null", f"{service}.options=null", f"{service}.env_url=http://h:1"]
    found = load_config(path, exchanged, for_run=False).config.astune.task_reader.env_service
    assert (found.serve, found.options, found.env_url) == (None, {}, "http://h:1")


def test_a_fraction_of_the_training_tasks_is_enough_for_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        GOOD.replace("task_reader: {", "task_reader: {validation_fraction: 0.1, ") + "  evaluation: {every: 2}\n"
    )
    assert load_config(path).config.astune.task_reader.validation_fraction == 0.1


def test_without_a_run_nothing_of_a_run_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("astune: {task_judge: {judge_protocol: MathAnswerAsJudge}}\n")
    assert load_config(path, for_run=False).config.astune.rollout.agentscope_learn_protocol is None
    with pytest.raises(ConfigError, match="agentscope_learn_protocol"):
        load_config(path)


def test_judges_in_files_are_meant_from_the_file_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    judge = "{judge_protocol: [{judge: a.py:f}, {judge: MathAnswerAsJudge}], scorers: {exam: b/c.py:g}}"
    path.write_text(f"astune: {{task_judge: {judge}}}\n")
    found = load_config(path, ["astune.task_judge.scorers.other=d.py:h"], for_run=False).config.astune.task_judge
    assert [named.judge for named in found.judges] == [f"{tmp_path}/a.py:f", "MathAnswerAsJudge"]
    assert found.scorers["exam"] == f"{tmp_path}/b/c.py:g"


def test_the_debugger_takes_what_only_training_forbids(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD.replace("'agent.py:W'", "'agent.py:W', num_repeat: 1, temperature: 0"))
    assert load_config(path, backbone="debug").config.astune.rollout.temperature == 0


@pytest.mark.fault("Input files and settings", "several mistakes in the configuration", "all are reported at once")
def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    text = GOOD + "  seed: x\n  seed: y\n  sed: 1\n  runs_dir: ${nope}\n"
    message = complaint(tmp_path, text, "astune.resume=7", "nonsense")
    assert message.splitlines()[0] == "6 errors in the configuration:"
    for expected in (
        "F:5: astune.seed: stands twice",
        "astune.seed: expected",
        "astune.sed:",
        "astune.runs_dir:",
        "command line: astune.resume:",
        "command line: 'nonsense'",
    ):
        assert expected in message
