"""Faults of models: folders, weights, chat templates, memory."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from astune.backbone.memory.model_size import read_size
from astune.doctor import Finding
from astune.doctor.checks import memory
from astune.support import machine_memory
from astune.support.machine_memory import MachineMemory
from astune.support.resources import tiny_model_dir
from tests.doctor.sound_config import TRAINS, RunDoctor, lines, problems, rows, the_problem

MODEL = {"model": {"path": "./model"}}
Change = Callable[[str], str]

SHELL_AGENT = """
from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import Toolkit, Write

from astune import Task, Tuner, WorkflowOutput
from astune.workflow.agentscope import training_defaults

async def agent(task: Task, tuner: Tuner) -> WorkflowOutput:
    model, toolkit = tuner.model("solver"), Toolkit(tools=[Write()])
    solver = Agent(name="solver", system_prompt="Solve.", model=model, toolkit=toolkit, **training_defaults())
    reply = await solver.reply(UserMsg(name="user", content=task.query))
    return WorkflowOutput(answer=reply.get_text_content())
"""
TOOL_AGENT = """
from astune import Task, Tuner, WorkflowOutput

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}

async def agent(task: Task, tuner: Tuner) -> WorkflowOutput:
    client = tuner.openai_client("solver")
    messages = [{"role": "user", "content": task.query}]
    reply = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
    return WorkflowOutput(answer=reply.choices[0].message.content)
"""
CHATTY_AGENT = """
from astune import Task, Tuner, WorkflowOutput

async def agent(task: Task, tuner: Tuner) -> WorkflowOutput:
    client = tuner.openai_client("solver")
    messages = [{"role": "user", "content": task.query}]
    for _ in range(2):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        messages += [reply.choices[0].message.model_dump(), {"role": "user", "content": "Are you sure?"}]
    return WorkflowOutput(answer=reply.choices[0].message.content)
"""


@pytest.fixture
def model(folder: Path) -> Path:
    """A copy of the tiny model, to be broken."""
    return Path(shutil.copytree(tiny_model_dir(), folder / "model"))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_target_of_adapters_that_no_layer_has_names_the_nearest(model: Path, run_doctor: RunDoctor) -> None:
    lora = {"rank": 4, "targets": ["q_prj", "v_proj", "embed_tokens", "layers.1.mlp.up_proj", "lm_head"]}
    said = [row for row in problems(run_doctor({"model": {"path": "./model", "lora": lora}})) if "targets" in str(row)]
    assert len(said) == 3
    assert "is called 'q_prj'. Did you mean 'q_proj'?" in str(said[0])
    assert "'embed_tokens' is the model's embedding and no linear layer" in str(said[1])
    assert "'lm_head' is the model's head, which stays as it is" in str(said[2])


def test_an_adapter_in_the_place_of_a_model_wants_its_settings(folder: Path, run_doctor: RunDoctor) -> None:
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "tiny"}')
    found = the_problem(run_doctor({"model": {"path": "./adapter"}}))
    assert "holds an adapter, and astune.model.lora.rank is not set" in found.what and "--merged" in found.fix
    assert problems(run_doctor({"model": {"path": "./adapter", "lora": {"rank": 4}}})) == []


def test_a_copy_of_the_model_is_as_good(model: Path, run_doctor: RunDoctor) -> None:
    assert problems(run_doctor(MODEL)) == []


def test_the_models_of_a_run_are_looked_at_one_by_one(model: Path, run_doctor: RunDoctor) -> None:
    def check(path: str) -> list[Finding]:
        models = {"a": {"path": path, "lora": {"rank": None}}, "b": {"frozen": True, "lora": {"rank": 4}}}
        return run_doctor({"backbone": "local", "models": models, "rollout": {"agents": {"*": "a"}}})

    found = check("./model")
    assert problems(found) == []
    (memory_line,) = [finding.what for finding in found if finding.check == "memory"]
    assert "weights (0.9M x 4 bytes) of a" in memory_line and "weights (0.9M x 4 bytes) of b" in memory_line
    missing = the_problem(check("./nowhere"))
    assert (missing.check, missing.level) == ("model", "fail")
    assert "astune.models.a.path: there is no folder" in missing.what and "astune.models" in missing.where


def test_a_folder_without_weights(model: Path, run_doctor: RunDoctor) -> None:
    (model / "model.safetensors").unlink()
    found = the_problem(run_doctor(MODEL))
    assert (found.check, found.level) == ("model", "fail")
    assert "no weights" in found.what and "astune.model.path" in found.where and "copy them there" in found.fix


def test_weights_that_are_cut_off(model: Path, run_doctor: RunDoctor) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    found = the_problem(run_doctor(MODEL))
    assert (found.check, found.level) == ("model", "fail")
    assert "cut off" in found.what and "fetch the model anew" in found.fix


def test_a_part_of_the_weights_that_is_missing(model: Path, run_doctor: RunDoctor) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-00002-of-00002.safetensors" in the_problem(run_doctor(MODEL)).what


def test_a_base_model_without_a_chat_template(model: Path, run_doctor: RunDoctor) -> None:
    (model / "chat_template.jinja").unlink()
    found = the_problem(run_doctor(MODEL))
    assert (found.check, found.level) == ("model", "fail")
    assert "no chat template" in found.what and "instruct version" in found.fix


def test_a_template_that_drops_the_tools(model: Path, run_doctor: RunDoctor) -> None:
    edit(model / "chat_template.jinja", "{{- tool | tojson }}", "{{- 'a tool' }}")
    found = the_problem(run_doctor(MODEL, agent_py=TOOL_AGENT))
    assert (found.check, found.level) == ("template", "fail")
    assert "drops the tools" in found.what and "made for tools" in found.fix


def test_a_template_that_drops_the_tools_matters_less_to_an_agent_without_tools(
    model: Path, run_doctor: RunDoctor
) -> None:
    edit(model / "chat_template.jinja", "{{- tool | tojson }}", "{{- 'a tool' }}")
    found = the_problem(run_doctor(MODEL))
    assert found.level == "warn" and "the dry run offered no tools" in found.what


def test_a_format_of_tool_calls_that_is_not_the_templates(model: Path, run_doctor: RunDoctor) -> None:
    found = the_problem(run_doctor({"model": {"path": "./model", "tool_call_format": "mistral"}}, agent_py=TOOL_AGENT))
    assert (found.check, found.level) == ("template", "fail")
    assert "not read back" in found.what and "'auto'" in found.fix and "tool_call_format" in found.where


def test_a_template_without_tool_calls_for_an_agent_with_tools(model: Path, run_doctor: RunDoctor) -> None:
    found = the_problem(run_doctor({"model": {"path": "./model", "tool_call_format": "none"}}, agent_py=TOOL_AGENT))
    assert (found.check, found.level) == ("template", "fail")
    assert "astune.model.tool_call_format is 'none'" in found.what and "hermes" in found.fix


def test_tools_that_act_on_this_machine_are_told_of_and_not_tried(folder: Path, run_doctor: RunDoctor) -> None:
    pytest.importorskip("agentscope", minversion="2.0")
    found = the_problem(run_doctor(agent_py=SHELL_AGENT))
    assert (found.check, found.level) == ("dry run", "warn")
    assert "its tools Write act on this machine, as the user" in found.what
    assert {path.name for path in folder.iterdir()} <= {
        "agent.py",
        "train.jsonl",
        "heldout.jsonl",
        "x.yaml",
        "__pycache__",
    }


def test_what_is_set_already_is_no_advice(model: Path, run_doctor: RunDoctor) -> None:
    edit(model / "chat_template.jinja", """'", "arguments": ' }}""", """'", "args": ' }}""")
    found = the_problem(run_doctor(MODEL, agent_py=TOOL_AGENT))
    assert "could not be read off its chat template: the chat template writes a call as" in found.what
    assert "'auto'" not in found.fix and "made for tools" in found.fix


def test_a_template_that_drops_system_messages(model: Path, run_doctor: RunDoctor) -> None:
    edit(
        model / "chat_template.jinja", "'<|im_start|>system\\n' + text(messages[0].content)", "'<|im_start|>system\\n'"
    )
    found = the_problem(run_doctor(MODEL))
    assert (found.check, found.level) == ("template", "fail") and "drops system messages" in found.what


def test_a_template_that_writes_the_past_anew(model: Path, run_doctor: RunDoctor) -> None:
    template = model / "chat_template.jinja"
    template.write_text("{{- messages | length }} messages\n" + template.read_text())
    found = problems(run_doctor(MODEL))
    assert {(f.check, f.level) for f in found} == {("template", "warn")}
    assert "template_not_append_only" in found[0].what and "training rows of their own" in found[0].what
    assert "only appends" in found[0].fix


def test_dropped_reasoning_matters_to_an_agent_with_several_user_messages(run_doctor: RunDoctor) -> None:
    found = the_problem(run_doctor(agent_py=CHATTY_AGENT))
    assert (found.check, found.level) == ("template", "warn")
    assert "reasoning_stripped" in found.what and "enable_thinking: false" in found.fix


def test_a_model_that_does_not_say_when_it_ends(model: Path, run_doctor: RunDoctor) -> None:
    edit(model / "chat_template.jinja", "<|im_end|>", "")
    edit(model / "tokenizer_config.json", '"eos_token": "<|im_end|>"', '"eos_token": null')
    (model / "generation_config.json").write_text("{}")
    found = the_problem(run_doctor(MODEL))
    assert (found.check, found.level) == ("template", "fail")
    assert "no token is known that ends an answer" in found.what and "eos_token" in found.fix


def test_a_model_too_large_for_the_machine(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "find_memory", lambda device: MachineMemory("a watch", 2**20, 2**20, False))
    found = the_problem(run_doctor({"backbone": "debug"}))
    assert (found.check, found.level) == ("memory", "fail")
    assert "of 1 MiB (a watch): weights (0.9M x 4 bytes)" in found.what and "max_concurrent" in found.fix


def test_a_machine_that_is_in_use(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "find_memory", lambda device: MachineMemory("a server", 2**34, 2**20, False))
    found = the_problem(run_doctor({"backbone": "debug"}))
    assert (found.check, found.level) == ("memory", "warn")
    assert "only 1 MiB are free now" in found.what and "end what else runs there" in found.fix


def test_a_gpu_that_torch_cannot_use(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = machine_memory.read_gpus("81559, 81007, NVIDIA H100 80GB HBM3\n15360, 15000, Tesla T4\n")
    assert [(gpu.name, gpu.total, gpu.free) for gpu in gpus[1:]] == [("Tesla T4", 15360 * 2**20, 15000 * 2**20)]
    monkeypatch.setattr(machine_memory, "gpus", lambda: gpus)
    monkeypatch.setattr(memory, "version_of", {"torch": "2.13.0+cpu"}.get)
    found = the_problem(run_doctor({"backbone": "debug"}))
    assert (found.check, found.level) == ("memory", "warn")
    assert "has a GPU (NVIDIA H100 80GB HBM3)" in found.what and "for CUDA" in found.fix
    monkeypatch.setattr(memory, "version_of", {"torch": "2.13.0"}.get)
    findings = run_doctor({"backbone": "debug", "model": {"device": "cuda:1"}})
    assert problems(findings) == []
    assert any("(Tesla T4): weights (0.9M x 4 bytes) 4 MiB + the sampler's copy (x 2)" in f.what for f in findings)


def test_a_gpu_that_is_not_there(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "gpus", list)
    found = the_problem(run_doctor({"backbone": "debug", "model": {"device": "cuda:1"}}))
    assert (found.check, found.level) == ("memory", "fail")
    assert "nvidia-smi shows no GPU" in found.what and "'auto'" in found.fix


def test_training_takes_gradients_and_adam_too(run_doctor: RunDoctor) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (trained,) = [f for f in run_doctor({"backbone": "local"}) if f.check == "memory"]
    assert trained.level == "ok" and all(part in trained.what for part in ("gradient", "Adam", "logits", "cache"))
    (looked_at,) = [f for f in run_doctor({"backbone": "debug"}) if f.check == "memory"]
    assert "Adam" not in looked_at.what


def test_parameters_are_those_in_the_headers_and_nearly_those_of_the_config(tmp_path: Path) -> None:
    counted = read_size(tiny_model_dir())
    assert (counted.parameters, counted.source) == (918912, "safetensors headers")
    shutil.copy(tiny_model_dir() / "config.json", tmp_path)
    estimated = read_size(tmp_path)
    assert estimated.source == "config.json"
    assert abs(estimated.parameters - counted.parameters) < 0.01 * counted.parameters


def test_a_disk_that_is_too_full_for_checkpoints(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=2**20))
    found = the_problem(run_doctor())
    assert (found.check, found.level) == ("run folder", "fail")
    assert "3 x 12 bytes x 918,912 trained parameters" in found.what and "keep_checkpoints" in found.fix


def test_room_is_for_adapters_and_for_attempts_that_are_played_again(run_doctor: RunDoctor) -> None:
    def needed(agent_reward: str) -> tuple[str, float]:
        changes = {"model": {"lora": {"rank": 8}}, "algorithm": {"agent_reward": agent_reward}, "backbone": "local"}
        pattern = re.compile(r"x ([\d,]+) trained parameters.* episodes up to ([\d.]+) MiB")
        (found,) = filter(None, (pattern.search(f.what) for f in run_doctor(changes)))
        return found[1], float(found[2])

    (numbers, once), (_, twice) = needed("own"), needed("leave_one_out")
    assert int(numbers.replace(",", "")) < 918_912 / 4
    assert 1.5 * once < twice  # of an agent each attempt is played once more, but held-out ones


def test_prompts_are_counted_with_system_prompt_and_tools(run_doctor: RunDoctor) -> None:
    long = lines([*rows(0, 11), {"query": "why " * 40, "answer": "1"}])
    (plain,) = [f for f in run_doctor(train_jsonl=long) if f.check == "context"]
    other = {"rollout": {"agentscope_learn_protocol": "tools.py:agent"}}
    (tools,) = [f for f in run_doctor(other, tools_py=TOOL_AGENT) if f.check == "context"]
    lengths = [int(f.what.split(" tokens")[0].split()[-1]) for f in (plain, tools)]
    assert lengths[1] > lengths[0] + 40 and "all 18 tasks" in plain.what


def test_a_backbone_without_known_memory_is_not_judged(run_doctor: RunDoctor) -> None:
    (found,) = [f for f in run_doctor({"backbone": TRAINS}) if f.check == "memory"]
    assert found.level == "skip"
