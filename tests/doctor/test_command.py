"""`astune doctor`: the table, the JSON, the exit codes, and that nothing is left behind."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from astune.cli.doctor import doctor
from astune.doctor import CheckedConfig, Finding, memory_estimate, run_checks, show
from astune.doctor.checks import packages
from astune.support import machine_memory
from astune.support.file_kinds import Kind, kind_of
from astune.support.terminal import Console
from tests.doctor.sound_config import AGENT, BACKBONES, RunDoctor, lines, problems, rows, the_problem, write_config

GOLDEN = Path(__file__).with_name("golden.json")
TUTORIAL = Path(__file__).parents[2] / "tutorial"
BROKEN = {"trainer": {"tasks_per_step": 16}, "task_reader": {"max_validation_tasks": 3}}


def run(folder: Path, *, changes: dict[str, Any] | None = None, as_json: bool = False) -> int:
    write_config(folder, changes or {})
    return doctor(Namespace(conf=Path("x.yaml"), overrides=[], backbone=None, json=as_json, offline=True))


def test_the_exit_code_says_whether_something_would_fail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 would fail, 0 warnings, 1 not looked at"
    assert run(folder, changes={"trainer": {"warmup_steps": 10}}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 would fail, 1 warning, 1 not looked at"
    assert run(folder, changes=BROKEN) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 would fail, 0 warnings, 1 not looked at"


def test_a_file_that_is_not_there_is_a_finding_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(Namespace(conf=Path("y.yaml"), overrides=[], backbone=None, json=False, offline=True)) == 1
    assert "no such file" in capsys.readouterr().out


def test_the_json_is_stable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "agent.py").write_text(AGENT + "\nprint('loading the agent')\n")
    assert run(folder, changes=BROKEN, as_json=True) == 1
    shown = capsys.readouterr()
    assert "loading the agent" in shown.err
    found = json.loads(shown.out)
    golden = json.loads(GOLDEN.read_text())
    assert kind_of(found) is Kind.DOCTOR
    assert {key: found[key] for key in found if key != "findings"} == {k: golden[k] for k in golden if k != "findings"}
    assert all(list(finding) == ["check", "level", "what", "where", "fix"] for finding in found["findings"])
    assert [{name: f[name] for name in f if name != "what"} for f in found["findings"]] == golden["findings"]


def test_one_finding_is_shown_whole_where_nobody_looks_at_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = "long " * 60
    show([Finding("warn", long, "x.yaml:3", "shorten it", "tasks")], Console(width=40), "1 warning")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"WARN  tasks       {long}"
    assert printed[1:] == [f"{'':18}at    x.yaml:3", f"{'':18}fix   shorten it", "1 warning"]


def test_a_terminal_gets_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("fail", "what " * 30, "x.yaml:3", "fix it", "tasks"), Finding("ok", "fine", check="tasks")]
    show(findings, Console(width=60, force_terminal=True, color_system=None), "1 would fail")
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 60
    assert printed[0].startswith("FAIL  tasks  what what") and printed[-1] == "1 would fail"
    assert any(line.strip() == "fix   fix it" for line in printed)


def test_checks_that_were_skipped_for_one_reason_are_told_of_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, changes={"seed": "x"}) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[3].startswith(
        "skip  16 checks   packages, tasks, model, tools, workspace, workflow, judge, dry run,"
    )
    assert printed[3].endswith("run folder, online, memory: needs a configuration that loads; see 'config' above")
    assert printed[4:] == ["1 would fail, 0 warnings, 16 not looked at"]


def test_a_problem_without_a_fix_cannot_be_told() -> None:
    with pytest.raises(ValueError, match="how to fix it"):
        Finding("fail", "it is broken")


def test_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(folder, {})
    before = sorted(folder.iterdir())
    assert run(folder) == 0
    after = [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"]
    assert after == before


def test_a_run_of_the_name_is_kept_and_can_be_gone_on_with(run_doctor: RunDoctor, folder: Path) -> None:
    checkpoint = folder / "runs" / "astune" / "x" / "checkpoints" / "step_000005"
    checkpoint.mkdir(parents=True)
    (checkpoint.parents[1] / "config.yaml").write_text("astune: {experiment_name: x}\n")
    (kept,) = [f for f in run_doctor() if f.check == "run folder" and "gets a number" in f.what]
    assert kept.level == "ok"
    assert "no complete checkpoint" in the_problem(run_doctor({"resume": True})).what
    (checkpoint / "COMPLETE").touch()
    findings = run_doctor({"resume": True})
    assert problems(findings) == []
    assert any("goes on from runs/astune/x/checkpoints/step_000005" in f.what for f in findings)


@pytest.mark.parametrize("conf", ["math_agent/demo.yaml", "any_agent/any_agent.yaml", "math_agent/gsm8k.yaml"])
def test_the_tutorials_are_well(conf: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("agentscope")
    pytest.importorskip("datasets")
    overrides = []
    if "math_agent" in conf and metadata.version("agentscope").startswith("1."):
        overrides = [
            f"astune.rollout.agentscope_learn_protocol={TUTORIAL}/math_agent/workflow_agentscope1.py:MathAgent"
        ]
    findings = run_checks(CheckedConfig(TUTORIAL / conf, overrides, offline=True, backbones=BACKBONES))
    assert problems(findings) == []
    skipped = {finding.check for finding in findings if finding.level == "skip"}
    assert skipped == ({"tasks", "judge", "dry run", "context"} if "gsm8k" in conf else set())


def agent2(calculate: str, permission: str) -> str:
    """An agent of AgentScope 2.x with a tool that does `calculate`."""
    return f"""
from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit

from astune import Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults


def calculator(expression: str) -> str:
    {calculate}


class MathAgent(Workflow):
    async def execute(self, task, tuner):
        agent = Agent(
            name="solver",
            system_prompt="Use the calculator. End with: The answer is N.",
            model=tuner.model("solver"),
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            {permission}
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())
"""


def test_an_agent_of_agentscope_that_would_ask_for_permission(run_doctor: RunDoctor) -> None:
    if not (packages.version_of("agentscope") or "").startswith("2."):
        pytest.skip("AgentScope 2.x asks")
    source = agent2("return '1'", "# training_defaults() would give the permission")
    found = problems(run_doctor({"rollout": {"agentscope_learn_protocol": "agent2.py:MathAgent"}}, agent2_py=source))[0]
    assert (found.check, found.level) == ("dry run", "fail")
    assert "asks for a permission" in found.what and "training_defaults()" in found.fix
    line = source.splitlines().index(next(line for line in source.splitlines() if "Agent(" in line and "=" in line))
    assert found.where.endswith(f"agent2.py:{line + 1}")


@pytest.mark.fault(
    "Tools and environments",
    "A tool of an agent raises whatever it is called with",
    "The doctor calls it with arguments that fit and shows what it said",
)
def test_what_a_tool_raises_is_shown(run_doctor: RunDoctor) -> None:
    if not (packages.version_of("agentscope") or "").startswith("2."):
        pytest.skip("AgentScope 2.x says which tool results are errors")
    source = agent2("raise RuntimeError('no network')", "**training_defaults()")
    findings = run_doctor({"rollout": {"agentscope_learn_protocol": "agent2.py:MathAgent"}}, agent2_py=source)
    assert problems(findings) == []
    (told,) = [one.what for one in findings if "made-up arguments" in one.what]
    assert "'calculator'" in told and "no network" in told


def test_packages_that_are_missing_or_old(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0+cpu", "transformers": "4.57.1", "safetensors": None, "numpy": "2.4.6"}
    monkeypatch.setattr(packages, "version_of", versions.get)
    pytest.importorskip("torch")
    old, missing = problems(run_doctor({"backbone": "local"}))
    assert "transformers 4.57.1 is too old: 5.20 is the oldest that works" in old.what
    assert "safetensors is not installed" in missing.what
    assert old.fix == missing.fix == 'pip install "astune[local]"'


@pytest.mark.parametrize(
    ("section", "missing", "fix"),
    [
        ({"model": {"lora": {"rank": 8}}}, "peft", 'pip install "astune[lora]"'),
        ({"trainer": {"optimizer": "adamw_8bit"}}, "bitsandbytes", "pip install bitsandbytes"),
        ({"model": {"lora": {"rank": 8, "base": "nf4"}}}, "bitsandbytes", "pip install bitsandbytes"),
    ],
)
def test_packages_that_one_setting_needs(
    section: dict[str, Any], missing: str, fix: str, run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    versions = dict.fromkeys((*packages.LOCAL, "peft", "bitsandbytes", "agentscope"), "99") | {missing: None}
    monkeypatch.setattr(packages, "version_of", versions.get)
    found = [each for each in run_doctor({"backbone": "local"} | section) if each.check == "packages"]
    assert (f"{missing} is not installed", fix) in [(each.what, each.fix) for each in found]


def test_flash_attention_needs_a_gpu(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "gpus", list)
    found = problems(run_doctor({"backbone": "local", "model": {"attention": "flash_attention_2"}}))
    said = [(each.what, each.fix) for each in found if each.check == "packages"]
    assert said == [
        ("flash attention is for CUDA alone, and this machine shows no GPU", "astune.model.attention: auto")
    ]


def test_a_workflow_for_agentscope_where_there_is_none(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "version_of", lambda name: None)
    found = problems(run_doctor(agent_py="async def agent(task, model):\n    import agentscope\n"))[0]
    assert found.check == "packages" and "agentscope, which is not installed" in found.what
    assert "astune[agentscope2]" in found.fix and found.where == "agent.py"


def test_the_versions_are_those_of_the_project() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^local = \[(.*)\]$", text, re.MULTILINE)
    least = dict(re.findall(r'"(\w+)>=([\d.]+)', listed))
    assert least == packages.LOCAL
    for extra, known in (("online", packages.ONLINE), ("postgresql", packages.POSTGRESQL)):
        (listed,) = re.findall(rf"^{extra} = \[(.*)\]$", text, re.MULTILINE)
        assert dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)', listed)) == known
    assert f'lora = ["peft>={packages.LORA},' in text
    (python,) = re.findall(r'^requires-python = ">=(\d+\.\d+),<(\d+\.\d+)"', text, re.MULTILINE)
    assert tuple(tuple(map(int, version.split("."))) for version in python) == packages.PYTHON


def test_what_the_doctor_knows_of_the_local_backbone_is_so() -> None:
    pytest.importorskip("torch")
    from astune.backbone.local import process
    from astune.backbone.local.learning import forward
    from astune.backbone.local.sampling import kv_cache

    assert memory_estimate.CACHE_GROWTH == kv_cache.GROWTH
    assert memory_estimate.LOGITS_AT_ONCE == forward.LOGITS_AT_ONCE
    assert memory_estimate.PROGRAMS == process.PROGRAMS


@pytest.mark.parametrize(
    ("algorithm", "updates", "what", "fix"),
    [
        ({"loss": "gspo"}, 2, "a bound of 1 + 0.28 is never reached", "clip_high 4e-4"),
        ({"loss": "reinforce"}, 2, "all but the first learn from tokens of an older policy", "importance: truncate"),
        ({"loss": "minirl", "out_of_date_decay": 0.1}, 1, "nothing decays", "updates_per_step to 2 or more"),
    ],
)
def test_a_loss_that_does_not_do_what_it_looks_like(
    run_doctor: RunDoctor, algorithm: dict[str, Any], updates: int, what: str, fix: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    changes = {"backbone": "local", "algorithm": algorithm, "trainer": {"updates_per_step": updates}}
    found = the_problem(run_doctor(changes))
    assert (found.check, found.level) == ("training", "warn")
    assert what in found.what and fix in found.fix


def test_few_words_are_enough_for_a_fault_in_the_data_and_one_in_the_code(run_doctor: RunDoctor) -> None:
    """Faults in different places are all found in one go."""
    found = problems(
        run_doctor(
            {"trainer": {"learning_rate": 1.0}},
            train_jsonl=lines(rows(0, 12)) + "{\n",
            agent_py=AGENT.replace("task.query", "task.metadata['prompt']"),
        )
    )
    assert [f.check for f in found] == ["tasks", "dry run", "training"]
