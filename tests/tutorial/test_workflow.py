"""The demo's agent on whichever AgentScope is installed."""

from importlib import metadata
from pathlib import Path

import pytest

from astune.cli import main
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.monitor import read_episodes
from astune.plugins import load_plugin
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedPolicy
from astune.types import Sampling, Task
from astune.workflow.tuner import Tuner

pytest.importorskip("agentscope")
AGENTSCOPE = int(metadata.version("agentscope").split(".")[0])
WORKFLOW = {1: "workflow_agentscope1.py", 2: "workflow.py"}[AGENTSCOPE]

SCHEMA = {
    1: '{"type": "function", "function": {"name": "calculator", "parameters": {"properties": {"expression":'
    ' {"description": "for example 12 * 7", "type": "string"}}, "required": ["expression"], "type": "object"},'
    ' "description": "Evaluate arithmetic."}}',
    2: '{"type": "function", "function": {"name": "calculator", "description": "Evaluate arithmetic.", "parameters":'
    ' {"properties": {"expression": {"description": "for example 12 * 7", "type": "string"}}, "required":'
    ' ["expression"], "type": "object"}}}',
}[AGENTSCOPE]
ANSWERS = [
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 * 5"}}\n</tool_call>',
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "15 + 4"}}\n</tool_call>',
    "The answer is 19.",
]
CONVERSATION = f"""<|im_start|>system
Use the calculator. End with: The answer is N.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{SCHEMA}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call><|im_end|>
<|im_start|>user
Lena buys 3 packs of 5 beads and then finds 4 more. How many beads does Lena have?<|im_end|>
<|im_start|>assistant
{ANSWERS[0]}<|im_end|>
<|im_start|>user
<tool_response>
15
</tool_response><|im_end|>
<|im_start|>assistant
{ANSWERS[1]}<|im_end|>
<|im_start|>user
<tool_response>
19
</tool_response><|im_end|>
<|im_start|>assistant
{ANSWERS[2]}<|im_end|>"""


async def test_a_real_episode_is_one_exact_timeline_that_reads_as_the_warm_up_conversations_do():
    chat_format = ChatFormat.load(tiny_model_dir())
    task = Task("t", "Lena buys 3 packs of 5 beads and then finds 4 more. How many beads does Lena have?", answer="19")
    policy = ScriptedPolicy(ANSWERS, chat_format)
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=64), max_turns=6, seed=1)
    tuner = Tuner(task, "test/t/0", tracker)
    workflow = load_plugin(f"{tutorial_dir() / 'math_agent' / WORKFLOW}:MathAgent", kind="workflow")()
    output = await workflow.execute(task, tuner)
    tuner.close()
    assert output.answer == "The answer is 19."
    assert output.reward is None
    (timeline,) = tracker.timelines()
    assert chat_format.decode(timeline.token_ids) == CONVERSATION
    assert len(timeline.token_ids) < 130


def test_the_demo_takes_the_agent_for_the_agentscope_that_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert main(["demo", "--backbone=debug", f"astune.runs_dir={tmp_path}"]) == 0
    (episodes,) = tmp_path.glob("*/*/episodes/debug.jsonl")
    assert [record.episode.error for record in read_episodes(episodes)] == [None]
