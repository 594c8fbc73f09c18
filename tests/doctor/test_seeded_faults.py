"""One fault in a configuration that has no other: the doctor names it, its place, and how to fix it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from astune.doctor import scripted_episode
from astune.doctor.checks import dry_run
from astune.environment.server import EnvServer
from astune.monitor import blocking
from astune.worlds.countdown import CountdownEnvironment
from tests.doctor.sound_config import AGENT, RunDoctor, lines, problems, rows, the_problem

WORKFLOW = {"rollout": {"agentscope_learn_protocol": "agent.py:agent"}}
OWN_JUDGE = {"task_judge": {"judge_protocol": "judge.py:judge"}}
NO_JUDGE = {"task_judge": {"judge_protocol": None, "answer_format": "auto"}}
ENVIRONMENT = {"judge_protocol": "EnvServiceJudge", "answer_format": "auto"}
TWO = {
    "model": {"lora": {"rank": 4}},
    "models": {"shop": {}},
    "rollout": {**WORKFLOW["rollout"], "agents": {"seller": "shop", "buyer": "shop"}},
}
CALL = 'await tuner.openai_client("solver").chat.completions.create(model="policy", messages=messages)'


class Fault(NamedTuple):
    """What is changed, and words of the one finding that comes of it."""

    changes: dict[str, Any]
    files: dict[str, str]
    check: str
    level: str
    what: str
    where: str
    fix: str


def agent(body: str, before: str = "") -> dict[str, str]:
    """An agent with another body, given `messages`."""
    text = f"""
from astune import Task, Tuner, Workflow, WorkflowOutput
{before}
async def agent(task: Task, tuner: Tuner) -> WorkflowOutput:
    messages = [{{"role": "user", "content": task.query}}]
    {body}
"""
    return {"agent_py": text}


def judge(body: str) -> dict[str, str]:
    """A judge of answers; attempts without one get 0."""
    text = f"def judge(task, episode):\n    if episode.output is None:\n        return 0.0\n    {body}\n"
    return {"judge_py": text}


def without(key: str) -> str:
    return lines([{name: value for name, value in row.items() if name != key} for row in rows(0, 12)])


def with_line(line: str) -> str:
    return lines(rows(0, 12)) + line + "\n"


TRAIN = "astune.task_reader.jsonl.training.file_path"
PROTOCOL = "astune.rollout.agentscope_learn_protocol"
JUDGE = "astune.task_judge.judge_protocol"

FAULTS = {
    "an unknown key": Fault(
        {"rollout": {"num_repeats": 4}}, {}, "config", "fail", "unknown key",
        "x.yaml:14: astune.rollout.num_repeats", "write astune.rollout.num_repeat",
    ),
    "a value of the wrong type": Fault(
        {"trainer": {"total_steps": "many"}}, {}, "config", "fail", "got 'many'",
        "astune.trainer.total_steps", "give it a whole number",
    ),
    "one attempt at each task": Fault(
        {"rollout": {"num_repeat": 1}}, {}, "config", "fail", "nothing to be compared with",
        "astune.rollout.num_repeat", "set it to 2 or more",
    ),
    "temperature 0 in training": Fault(
        {"rollout": {"temperature": 0.0}}, {}, "config", "fail", "all attempts at a task equal",
        "astune.rollout.temperature", "set it to 0.01 or more",
    ),
    "answers as long as the context": Fault(
        {"model": {"max_model_len": 32}}, {}, "config", "fail", "leave no room",
        "astune.rollout.max_tokens", "lower it",
    ),
    "an evaluation without held-out tasks": Fault(
        {"task_reader": {"jsonl": {"validation": {"file_path": None}}}, "evaluation": {"every": 5}}, {},
        "config", "fail", "needs held-out tasks", "astune.evaluation.every", "set it",
    ),
    "a key that the backbone does not know": Fault(
        {"backbone": str(Path(__file__).with_name("backbones.py")) + ":NoWarmup", "trainer": {"warmup_steps": 2}}, {},
        "config", "fail", "does not support it", "x.yaml:21: astune.trainer.warmup_steps", "choose another backbone",
    ),
    "no such backbone": Fault(
        {"backbone": "lokal"}, {}, "config", "fail", "Did you mean 'local'?", "x.yaml:3: astune.backbone",
        "debug, local",
    ),
    "a mistyped data file": Fault(
        {"task_reader": {"jsonl": {"training": {"file_path": "trian.jsonl"}}}}, {}, "tasks", "fail",
        "Did you mean 'train.jsonl'?", f"x.yaml:7: {TRAIN}", "correct the path",
    ),
    "a broken line": Fault(
        {}, {"train_jsonl": with_line('{"query": "What?", "answer": ')}, "tasks", "fail", "broken JSON",
        "train.jsonl:13:29", "one whole JSON object",
    ),
    "a filter that leaves nothing": Fault(
        {"task_reader": {"filter": "answer == 'x'"}}, {}, "tasks", "fail", "leaves none of the 12 training records",
        "x.yaml:", "correct what astune.task_reader names",
    ),
    "a task without a question": Fault(
        {}, {"train_jsonl": with_line('{"qestion": "What?", "answer": "1"}')}, "tasks", "fail",
        "no query: the row has 'qestion'", "train.jsonl:13", "astune.task_reader.fields",
    ),
    "an empty question": Fault(
        {}, {"train_jsonl": with_line('{"query": " ", "answer": "1"}')}, "tasks", "fail", "is empty",
        "train.jsonl:13", "write the question",
    ),
    "an id that is used twice": Fault(
        {}, {"train_jsonl": with_line('{"task_id": "t3", "query": "What?", "answer": "1"}')}, "tasks", "fail",
        "'t3' is already used at train.jsonl:4", "train.jsonl:13", "an id of its own",
    ),
    "a question that is asked twice": Fault(
        {}, {"train_jsonl": with_line('{"query": "What  is 3 PLUS 4?", "answer": "7"}')}, "tasks", "warn",
        "1 of 13 training tasks repeat another's question, the first that of train.jsonl:4", "train.jsonl:13",
        "take the repeated ones out",
    ),
    "held-out tasks that are trained on": Fault(
        {}, {"heldout_jsonl": lines([*rows(100, 5), *rows(3, 1)])}, "tasks", "fail",
        "1 of 6 held-out tasks are trained on too, this one as train.jsonl:4", "heldout.jsonl:6",
        "take them out of one of the two",
    ),
    "environments that nobody serves": Fault(
        {}, {"train_jsonl": lines([row | {"env_type": "game"} for row in rows(0, 12)])}, "tasks", "fail",
        "has the env_type 'game', but nothing says where its environment is served",
        "x.yaml: astune.task_reader.env_service.env_url (default)", "take the field env_type out",
    ),
    "an environment that does not come up": Fault(
        {"task_reader": {"type": "env_service", "env_service": {"serve": "countdwn"}}}, {}, "tasks", "fail",
        "Did you mean 'countdown'?", "astune.task_reader.env_service.serve", "name another",
    ),
    "tasks without answers": Fault(
        {}, {"train_jsonl": without("answer")}, "tasks", "fail",
        "12 of 18 tasks have no reference answer, which MathAnswerAsJudge compares with", "train.jsonl:1",
        "astune.task_reader.fields.answer; the first of these tasks has task_id, query",
    ),
    "few tasks": Fault(
        {}, {"train_jsonl": lines(rows(0, 5))}, "tasks", "warn", "5 training tasks", TRAIN, "collect more",
    ),
    "a workflow that does not import": Fault(
        {}, {"agent_py": AGENT + "\nTOOLS = make_tools()\n"}, "workflow", "fail",
        "agent.py:10: `TOOLS = make_tools()`: NameError", f"x.yaml:11: {PROTOCOL}", "fix the line that is named",
    ),
    "a mistyped workflow": Fault(
        {"rollout": {"agentscope_learn_protocol": "agent.py:agnet"}}, {}, "workflow", "fail", "Did you mean 'agent'?",
        PROTOCOL, "a class or function that there is",
    ),
    "a workflow that yields": Fault(
        {}, {"agent_py": "def agent(task, model):\n    yield 1\n"}, "workflow", "fail", "is a generator", PROTOCOL,
        "function of (task, tuner) or (task, model)",
    ),
    "a workflow with a parameter that nothing gives": Fault(
        {}, {"agent_py": "async def agent(task, modle):\n    pass\n"}, "workflow", "fail", "Did you mean 'model'?",
        PROTOCOL, "function of (task, tuner) or (task, model)",
    ),
    "a workflow that cannot be made": Fault(
        {}, {"agent_py": "from astune import Workflow\nclass agent(Workflow):\n    def __init__(self):\n"
             "        self.key = {}['KEY']\n    async def execute(self, task, tuner):\n        pass\n"},
        "workflow", "fail", "KeyError: 'KEY' at `self.key = {}['KEY']`", "agent.py:4", "fix __init__",
    ),
    "a workflow that raises": Fault(
        {}, agent("return task.metadata['solution']"), "dry run", "fail",
        "KeyError: 'solution' at `return task.metadata['solution']`", "agent.py:6", "--backbone=debug",
    ),
    "a workflow that never calls the model": Fault(
        {}, agent("return WorkflowOutput(answer='The answer is 1.')"), "dry run", "fail", "never called the model",
        PROTOCOL, "tuner.openai_client",
    ),
    "an auxiliary model that is not configured": Fault(
        {}, agent('return await tuner.openai_client("critic", source="critic").models.list()'), "dry run", "fail",
        "there is no such auxiliary model", "agent.py:6", "add it under astune.rollout.auxiliary_models",
    ),
    "an agent on a model that there is not": Fault(
        TWO, agent('return await tuner.openai_client("buyer", policy="shopp").models.list()'), "dry run", "fail",
        "policy='shopp': there is no such model. Did you mean 'shop'?", "agent.py:6", "correct the name",
    ),
    "an agent that no pattern matches": Fault(
        TWO, agent('return await tuner.openai_client("seler").models.list()'), "dry run", "fail",
        "no pattern matches the agent 'seler', so that it has no model. Did you mean 'seller'?", "agent.py:6",
        "correct the name",
    ),
    "a pattern that no agent matches": Fault(
        TWO, agent(f"reply = {CALL.replace('solver', 'seller')}\n"
                   "    return WorkflowOutput(answer=reply.choices[0].message.content)"),
        "dry run", "warn", "no agent matches 'buyer'", "x.yaml:", "a run whose first step has no such agent",
    ),
    "a workflow that returns text": Fault(
        {}, agent(f"return ({CALL}).choices[0].message.content"), "dry run", "fail",
        "expected astune.WorkflowOutput", PROTOCOL, "WorkflowOutput(answer=...) at its end",
    ),
    "a workflow that returns no answer": Fault(
        {}, agent(f"{CALL}\n    return WorkflowOutput()"), "dry run", "fail", "returned no answer", PROTOCOL,
        "text of the agent's last message",
    ),
    "a workflow that returns another answer": Fault(
        {}, agent(f"{CALL}\n    return WorkflowOutput(answer='done')"), "dry run", "fail",
        "the model said 'The answer is 1.', which is right, and the episode got reward 0", PROTOCOL,
        "model's own last text",
    ),
    "an agent with a temperature of 0": Fault(
        {}, agent(f"reply = {CALL[:-1]}, temperature=0)\n"
                  "    return WorkflowOutput(answer=reply.choices[0].message.content)"),
        "dry run", "fail", "no turn of the workflow would be trained (1 greedy)", PROTOCOL, "take temperature=0 out",
    ),
    "an agent that is not trained": Fault(
        {}, agent('reply = await tuner.openai_client("solver", trainable=False).chat.completions.create('
                  'model="policy", messages=messages)\n'
                  "    return WorkflowOutput(answer=reply.choices[0].message.content)"),
        "dry run", "fail", "(1 frozen)", PROTOCOL, "trainable=False",
    ),
    "an agent that does not stop": Fault(
        {}, agent(f"while True:\n        {CALL}"), "dry run", "warn", "went on calling the model",
        "astune.rollout.max_turns", "let the agent stop by itself",
    ),
    "answers without room": Fault(
        {"rollout": {"max_tokens": 3}}, {}, "dry run", "fail", "more than 3 tokens", "astune.rollout.max_tokens",
        "raise it",
    ),
    "no judge and no reward": Fault(
        NO_JUDGE, {}, "dry run", "fail", "returned no reward, and there is no judge",
        PROTOCOL, "fix the judge",
    ),
    "a reward that is always the same": Fault(
        NO_JUDGE, agent(f"{CALL}\n    return WorkflowOutput(answer='x', reward=0.5)"),
        "dry run", "fail", "rewards a wrong answer ('3': 0.5) as well as the right one", PROTOCOL,
        "let reward=... compare",
    ),
    "a reward that never comes": Fault(
        NO_JUDGE, agent(f"{CALL}\n    return WorkflowOutput(answer='x', reward=0.0)"),
        "dry run", "warn", "gave no reward (0) for the right answer", PROTOCOL, "let reward=... compare",
    ),
    "a judge beside a reward": Fault(
        {}, agent(f"reply = {CALL}\n    said = reply.choices[0].message.content\n"
                  "    return WorkflowOutput(answer=said, reward=float(f' {task.answer}.' in said))"),
        "dry run", "warn", "so the judge is never asked", JUDGE, "take the judge out",
    ),
    "a judge that does not import": Fault(
        OWN_JUDGE, {"judge_py": "import no_such_package\n"}, "judge", "fail", "No module named 'no_such_package'",
        JUDGE,
        "pip install no_such_package",
    ),
    "a judge with other parameters": Fault(
        OWN_JUDGE, {"judge_py": "def judge(task, answer):\n    return 1.0\n"}, "judge", "fail",
        "unknown parameter 'answer'", JUDGE, "MathAnswerAsJudge",
    ),
    "a judge that raises": Fault(
        OWN_JUDGE, judge("return task.metadata['solution'] == episode.output.answer"), "judge", "fail",
        "fails on 3 of 3 right answers, first on that of train.jsonl:1: KeyError: 'solution'", "judge.py:4",
        "fix the judge",
    ),
    "a judge that never says yes": Fault(
        OWN_JUDGE, judge("return task.answer is episode"), "judge", "fail",
        "do not count as right; train.jsonl:1: '1' got reward 0", JUDGE,
        "the task's own reference answer 1",
    ),
    "a judge that fails where there is no answer": Fault(
        OWN_JUDGE, judge("return episode.output.answer.split()[-1].strip('.') == task.answer"), "judge", "warn",
        "the judge fails on an empty answer: IndexError", "judge.py:4", "return 0 there",
    ),
    "a judge that forgets attempts without an output": Fault(
        OWN_JUDGE, {"judge_py": "def judge(task, episode):\n    return episode.output.answer == task.answer\n"},
        "judge", "warn", "fails on an attempt that ran out of turns: AttributeError", "judge.py:2", "return 0 there",
    ),
    "a judge that the question satisfies": Fault(
        OWN_JUDGE, judge("return 'plus' in episode.output.answer or task.answer == episode.output.answer"), "judge",
        "fail",
        "the question repeated passes: 'What is 0 plus 1?' got reward 1", JUDGE,
        "compare with task.answer more strictly",
    ),
    "a reference answer that is no mathematics": Fault(
        {}, {"train_jsonl": with_line('{"query": "What?", "answer": "\\\\frac{1}{"}')}, "judge", "warn",
        "cannot be read as mathematics", JUDGE, "correct the reference answer of that task",
    ),
    "a model that is not there": Fault(
        {"model": {"path": "./qwen"}}, {}, "model", "fail", "there is no folder './qwen'", "astune.model.path",
        "a folder in Hugging Face's format",
    ),
    "a conversation too long for the model": Fault(
        {}, {"heldout_jsonl": lines([*rows(100, 5), {"query": "why " * 3000, "answer": "1"}])}, "context", "fail",
        "no room for an answer", "heldout.jsonl:6", "take such tasks out",
    ),
    "a prompt that cuts the answer": Fault(
        {"rollout": {"max_tokens": 2000}},
        {"train_jsonl": with_line('{"query": "' + "why " * 60 + '", "answer": "1"}')},
        "context", "warn", "its first answer is cut at", "train.jsonl:13", "set max_tokens to",
    ),
    "a context longer than the model's": Fault(
        {"model": {"max_model_len": 4096}}, {}, "context", "fail", "the model was made for 2048",
        "astune.model.max_model_len", "set it to 2048 or fewer",
    ),
    "more tasks in a step than there are": Fault(
        {"trainer": {"tasks_per_step": 16}}, {}, "training", "fail", "a step takes 16 tasks, and there are 12",
        "x.yaml:19: astune.trainer.tasks_per_step", "set it to 12 or fewer",
    ),
    "a learning rate beyond reason": Fault(
        {"trainer": {"learning_rate": 1.0}}, {}, "training", "fail", "ruins the model", "astune.trainer.learning_rate",
        "1e-4 to 1e-3",
    ),
    "a long run without checkpoints": Fault(
        {"trainer": {"total_steps": 1000, "save_minutes": 0}}, {},
        "training", "warn", "1000 steps without a checkpoint", "astune.trainer.save_every", "set it to 50",
    ),
    "a warm-up as long as the run": Fault(
        {"trainer": {"warmup_steps": 10}}, {}, "training", "warn", "as long as the run", "astune.trainer.warmup_steps",
        "set it to",
    ),
    "an evaluation that cannot be": Fault(
        {"task_reader": {"jsonl": {"validation": {"file_path": None}}}, "evaluation": {"before": True}}, {}, "training",
        "warn", "there are no held-out tasks", "astune.evaluation.before", "validation.file_path",
    ),
    "a best checkpoint by a metric that the judge does not give": Fault(
        {"trainer": {"keep_best": "eval/greedy/judge/answer_fund"}, "evaluation": {"every": 5}}, {}, "training", "warn",
        "no such metric of the episode of the dry run", "astune.trainer.keep_best", "eval/greedy/judge/answer_found",
    ),
    "a best checkpoint by success, of which the judge says nothing": Fault(
        {**OWN_JUDGE, "trainer": {"keep_best": "eval/greedy/success"}, "evaluation": {"every": 5}},
        judge('return 1.0 * str(episode.output.answer).endswith(f" {task.answer}.")'), "training", "warn",
        "the judge does not say what succeeds", "astune.trainer.keep_best", "eval/greedy/reward",
    ),
    "no such advantage": Fault(
        {"algorithm": {"advantage": "grp"}}, {}, "training", "fail", "Did you mean 'grpo'?",
        "astune.algorithm.advantage",
        "one of",
    ),
    "tasks without the column of their kind": Fault(
        {"algorithm": {"advantage": "running_mean", "baseline_by": "topic"}}, {}, "training", "fail",
        "12 training tasks have no column 'topic' in their metadata", "astune.algorithm.baseline_by",
        "a column that every task has",
    ),
    "a critic slower than the policy": Fault(
        {"algorithm": {"advantage": "gae", "critic": {"learning_rate": 1.0e-9}}}, {}, "training", "warn",
        "the critic learns more slowly", "astune.algorithm.critic.learning_rate", "two to ten times",
    ),
    "further tasks that there are not": Fault(
        {"algorithm": {"dynamic_sampling": 2}, "trainer": {"tasks_per_step": 12}}, {}, "training", "warn",
        "all 12 training tasks are in every step", "astune.algorithm.dynamic_sampling",
        "lower astune.trainer.tasks_per_step",
    ),
    "a curriculum that never chooses": Fault(
        {"trainer": {"curriculum": {"enabled": True}, "tasks_per_step": 4, "total_steps": 3}}, {}, "training", "warn",
        "the 12 places of the run are no more than the 12 tasks", "astune.trainer.curriculum.enabled",
        "leaves half of each step to tasks that are known",
    ),
    "a run to go on with that is not there": Fault(
        {"resume": True}, {}, "run folder", "fail", "there is no run", "astune.resume", "Start it without --resume",
    ),
    "tools that nothing isolates": Fault(
        {"rollout": {"workspace": {"type": "none"}}}, {}, "workspace", "warn", "tools run on this machine as the user",
        "astune.rollout.workspace.type", "AstuneSandbox",
    ),
    "a workspace that AgentScope does not have": Fault(
        {"rollout": {"workspace": {"type": "DockerWorkspac"}}}, {}, "workspace", "fail",
        "Did you mean 'DockerWorkspace'", "astune.rollout.workspace.type", "a workspace for tools",
    ),
    "a file where the runs shall be": Fault(
        {"runs_dir": "agent.py"}, {}, "run folder", "fail", "agent.py is a file", "x.yaml:2: astune.runs_dir",
        "another",
    ),
    "a database that is none": Fault(
        {"monitor": {"store": "sqlite:///agent.py"}}, {}, "run folder", "fail", "file is not a database",
        "x.yaml:22: astune.monitor.store", "null for none",
    ),
}  # fmt: skip


@pytest.mark.fault(
    "What a run says",
    "a fault is put into a configuration, its tasks, its model or its workflow",
    "the doctor names it, and what it advises fixes it",
)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_named_and_can_be_fixed(name: str, run_doctor: RunDoctor) -> None:
    fault = FAULTS[name]
    found = the_problem(run_doctor(fault.changes, **fault.files))
    assert (found.check, found.level) == (fault.check, fault.level)
    assert fault.what in found.what
    assert fault.where in found.where
    assert fault.fix in found.fix


def test_a_configuration_without_a_fault_is_left_alone(run_doctor: RunDoctor) -> None:
    findings = run_doctor()
    assert problems(findings) == []
    assert {finding.check for finding in findings if finding.level == "skip"} == {"memory"}  # of an unknown backbone


def test_the_doctor_starts_the_service_that_a_run_would_start(run_doctor: RunDoctor) -> None:
    service = {"serve": "countdown", "options": {"tasks": 20, "numbers": 3}, "validation_split": "validation"}
    reader = {"type": "env_service", "env_service": service}
    findings = run_doctor({"task_reader": reader, "task_judge": ENVIRONMENT, "rollout": {"max_tokens": 2}})
    assert problems(findings) == []
    assert any(finding.what.startswith("20 training tasks") for finding in findings)


def test_the_doctor_asks_whether_a_service_has_room_for_a_group(run_doctor: RunDoctor) -> None:
    with EnvServer([CountdownEnvironment(tasks=20, numbers=3)], max_instances=1) as server:
        reader = {"type": "env_service", "env_service": {"env_url": server.url, "validation_split": "validation"}}
        found = the_problem(
            run_doctor({"task_reader": reader, "task_judge": ENVIRONMENT, "rollout": {"max_tokens": 2}})
        )
    assert (found.check, found.level) == ("tasks", "warn")
    assert "room for 1 of the 4 attempts" in found.what and "max_concurrent_envs" in found.fix


def test_every_bad_line_is_named_up_to_a_few(run_doctor: RunDoctor) -> None:
    found = problems(run_doctor(train_jsonl=lines(rows(0, 12)) + "{\n" * 7))
    assert [finding.where for finding in found[:5]] == [f"train.jsonl:{line}:2" for line in range(13, 18)]
    assert "2 more records like these" in found[5].what and len(found) == 6


@pytest.mark.fault("What a run says", "a workflow blocks while the doctor tries it", "the doctor goes on and says so")
def test_a_workflow_that_blocks_its_event_loop_is_left_behind(
    run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SECONDS", 0.05)
    monkeypatch.setattr(scripted_episode, "GRACE", 1.5)  # half of what it blocks for
    monkeypatch.setattr(blocking, "EVERY", 0.01)
    found = the_problem(run_doctor(**agent("time.sleep(3)", before="import time")))
    assert found.check == "dry run" and "blocks the event loop" in found.what and "asyncio.sleep" in found.fix
    assert re.fullmatch(r".*agent\.py:\d+", found.where)


@pytest.mark.fault(
    "What a run says",
    "A workflow blocks for a while in each episode",
    "The doctor names the line and what to write instead",
)
def test_a_line_that_blocks_for_a_while_is_named(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "EVERY", 0.05)
    monkeypatch.setattr(dry_run, "BLOCKED_SECONDS", 0.5)
    text = AGENT.replace("    client =", "    time.sleep(1.5)\n    client =")
    found = the_problem(run_doctor(agent_py=f"import time\n{text}"))
    assert (found.check, found.level) == ("dry run", "warn") and "`time.sleep(1.5)` blocks" in found.what
    assert re.fullmatch(r".*agent\.py:\d+", found.where)


def test_a_workflow_that_waits_for_ever_is_cancelled(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "SECONDS", 0.05)
    found = the_problem(run_doctor(**agent("await asyncio.Event().wait()", before="import asyncio")))
    assert found.check == "dry run" and "still running" in found.what and "every model answered at once" in found.fix


def test_a_judge_that_gives_all_answers_the_same_is_found_for_each_kind_of_wrong_answer(run_doctor: RunDoctor) -> None:
    found = problems(run_doctor(OWN_JUDGE, **judge("return True")))
    kinds = ["a wrong answer", "an empty answer", '"I don\'t know"', "the question repeated"]
    assert [finding.what.partition(" passes")[0] for finding in found] == kinds
    assert {(finding.check, finding.level) for finding in found} == {("judge", "fail")}


def test_a_judge_by_degrees_gets_a_warning_only(run_doctor: RunDoctor) -> None:
    found = the_problem(run_doctor(OWN_JUDGE, **judge("return 0.8 * (episode.output.answer == task.answer)")))
    assert (found.check, found.level) == ("judge", "warn") and "less than the 1" in found.what


LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def test_a_tool_call_that_ends_the_episode_is_found(run_doctor: RunDoctor) -> None:
    body = f"""client = tuner.openai_client("solver")
    reply = await client.chat.completions.create(model="policy", messages=messages, tools=[{LOOK_UP}])
    for call in reply.choices[0].message.tool_calls or []:
        word = json.loads(call.function.arguments)["word"]
    return WorkflowOutput(answer=reply.choices[0].message.content)"""
    found = the_problem(run_doctor(**agent(body, before="import json")))
    assert (found.check, found.level) == ("dry run", "warn")
    assert "a call of 'look_up' without its arguments" in found.what and "KeyError: 'word'" in found.what
    assert found.where == "agent.py:9" and "as the tool's result" in found.fix


def test_an_agent_that_drops_tool_calls_is_found(run_doctor: RunDoctor) -> None:
    body = f"""client = tuner.openai_client("solver")
    reply = await client.chat.completions.create(model="policy", messages=messages, tools=[{LOOK_UP}])
    return WorkflowOutput(answer=reply.choices[0].message.content or "")"""
    found = the_problem(run_doctor(**agent(body)))
    assert (found.check, found.level) == ("dry run", "warn")
    assert "got no result" in found.what and "role 'tool'" in found.fix


def test_an_agent_with_tools_needs_more_than_one_turn(run_doctor: RunDoctor) -> None:
    body = f"""client = tuner.openai_client("solver")
    while True:
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=[{LOOK_UP}])
        messages.append(reply.choices[0].message.model_dump(exclude_none=True))
        if not reply.choices[0].message.tool_calls:
            return WorkflowOutput(answer=reply.choices[0].message.content)
        for call in reply.choices[0].message.tool_calls:
            messages.append({{"role": "tool", "tool_call_id": call.id, "content": "?"}})"""
    found = the_problem(run_doctor({"rollout": {"max_turns": 1}}, **agent(body)))
    assert (found.check, found.level) == ("dry run", "warn")
    assert "max_turns = 1" in found.what and "astune.rollout.max_turns" in found.where and "raise it" in found.fix


def test_a_check_that_crashes_does_not_hide_the_others(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astune.doctor.checks.context.longest_prompt", lambda checked: 1 / 0)
    findings = run_doctor({"trainer": {"learning_rate": 1.0}})
    crashed, rate = problems(findings)
    assert crashed.check == "context" and "ZeroDivisionError" in crashed.what and crashed.level == "fail"
    assert rate.check == "training"
    assert {"endpoints", "run folder"} <= {finding.check for finding in findings if finding.level == "ok"}


def test_a_workflow_file_that_ends_the_program_does_not_end_the_doctor(run_doctor: RunDoctor) -> None:
    findings = run_doctor(agent_py="import sys\nsys.exit(3)\n")
    found = the_problem(findings)
    assert found.check == "workflow" and "SystemExit" in found.what and found.where == "agent.py:2"
    assert any(finding.check == "run folder" and finding.level == "ok" for finding in findings)


def test_checks_that_need_what_failed_say_so(run_doctor: RunDoctor) -> None:
    findings = run_doctor(agent_py="def agent(): pass")
    (skipped,) = [f for f in findings if f.level == "skip" and f.check == "dry run"]
    assert skipped.what == "needs a workflow that loads; see 'workflow' above"


def test_an_agent_that_hands_its_answer_in_with_a_tool_comes_to_its_end(run_doctor: RunDoctor) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "submit_answer",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
    body = f"""client = tuner.openai_client("solver")
    while True:
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=[{tool}])
        messages.append(reply.choices[0].message.model_dump(exclude_none=True))
        for call in reply.choices[0].message.tool_calls or []:
            arguments = json.loads(call.function.arguments)
            if "text" in arguments:
                return WorkflowOutput(answer=arguments["text"])
            messages.append({{"role": "tool", "tool_call_id": call.id, "content": "text is missing"}})"""
    findings = run_doctor(**agent(body, before="import json"))
    assert problems(findings) == []
    assert any("2 model calls, tools: submit_answer; returned 'The answer is 1.'" in f.what for f in findings)
