"""Real AgentScope 1.x agents, and workflows written for AgentScope 1.x's tuner."""

import importlib.util
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

from astune.config.rollout import ContextConfig
from astune.context_tracker.cuts import CutTracker
from astune.errors import MissingDependency, WorkflowError
from astune.types import UNKNOWN_TOOL, Task, ToolUse, WorkflowOutput
from astune.workflow.workflow_base import Workflow, as_workflow, check_output

pytest.importorskip("agentscope", minversion="1.0")
if not metadata.version("agentscope").startswith("1."):
    pytest.skip("AgentScope 1.x is not installed", allow_module_level=True)

import agentscope
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse, execute_shell_command, view_text_file, write_text_file
from pydantic import BaseModel

from astune.workflow.agentscope import training_defaults

ANSWERS = [
    '<tool_call>\n{"name": "calculate",  "arguments": {"expression":"2+2"}}\n</tool_call>',
    'So far 4.\n<tool_call>\n{"name": "calculate",  "arguments": {"expression":"4*3"}}\n</tool_call>',
    "The answer is 12.",
]
TASK = Task("t1", "What is (2 + 2) * 3?", metadata={"question": "What is (2 + 2) * 3?", "answer": "12"})


def tuner_output_class():
    """AgentScope's own `WorkflowOutput`. Its package imports dspy, so the one module is loaded by itself."""
    path = Path(agentscope.__file__).parent / "tuner" / "_workflow.py"
    spec = importlib.util.spec_from_file_location("agentscope.tuner._workflow", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WorkflowOutput


def make_agent(model, ran):
    def calculate(expression: str) -> ToolResponse:
        """Work out an expression.

        Args:
            expression (str): what to work out
        """
        ran.append(expression)
        return ToolResponse(content=[TextBlock(type="text", text=str({"2+2": 4, "4*3": 12}[expression]))])

    toolkit = Toolkit()
    toolkit.register_tool_function(calculate)
    agent = ReActAgent(
        name="solver", sys_prompt="You solve.", model=model, formatter=OpenAIChatFormatter(), toolkit=toolkit
    )
    agent.set_console_output_enabled(False)
    return agent


@pytest.mark.parametrize("options", [{}, {"stream": True}])
async def test_an_agent_runs_its_tool_and_its_calls_are_one_exact_timeline(make_tuner, chat_format, options):
    tuner, tracker, policy = make_tuner(ANSWERS)
    ran = []
    reply = await make_agent(tuner.model("solver", **options), ran)(Msg("user", TASK.query, "user"))
    assert reply.get_text_content() == "The answer is 12."
    assert ran == ["2+2", "4*3"]
    assert [turn.prompt_ids for turn in tracker.turns] == [prompt_ids for prompt_ids, _ in policy.calls]
    (timeline,) = tracker.timelines()
    last = tracker.turns[-1]
    assert timeline.token_ids == last.prompt_ids + last.output_ids
    sampled = [chat_format.decode(timeline.token_ids[span.start : span.stop]) for span in timeline.spans]
    assert sampled == [answer + "<|im_end|>" for answer in ANSWERS]
    assert "<tool_response>\n12\n</tool_response>" in chat_format.decode(timeline.token_ids)


async def test_where_the_run_cuts_conversations_an_agent_keeps_its_own_whole(make_tuner, chat_format):
    cuts = partial(CutTracker, ContextConfig(strategy="discard", at=900))
    calls = [f'<tool_call>\n{{"name": "look", "arguments": {{"page": {page}}}}}\n</tool_call>' for page in range(3)]
    tuner, tracker, policy = make_tuner([*calls, "The answer is 12."], kind=cuts)

    def look(page: int) -> ToolResponse:
        """Read a page.

        Args:
            page (int): which
        """
        return ToolResponse(content=[TextBlock(type="text", text=f"page {page}: " + "rain " * 60)])

    agent = make_agent(tuner.model("solver"), [])
    agent.toolkit.register_tool_function(look)
    assert (await agent(Msg("user", TASK.query, "user"))).get_text_content() == "The answer is 12."
    assert {turn.fork for turn in tracker.turns if turn.cut is not None} == {"context_cut"}
    shown = chat_format.decode(policy.calls[-1][0])
    assert [f"page {page}:" in shown for page in range(3)] == [False, False, True]
    results = [
        block for message in await agent.memory.get_memory() for block in message.get_content_blocks("tool_result")
    ]
    assert ["rain rain" in str(block["output"]) for block in results] == [True] * 3


async def test_a_workflow_function_for_agentscopes_tuner_runs_unchanged(make_tuner):
    output_class = tuner_output_class()
    ran = []

    async def run_react_agent(task, model, auxiliary_models):
        reply = await make_agent(model, ran)(Msg("user", task["question"], "user"))
        right = task["answer"] in reply.get_text_content()
        return output_class(response=reply, reward=float(right), metrics={"tools": float(len(ran))})

    tuner, tracker, _ = make_tuner(ANSWERS)
    workflow = as_workflow(run_react_agent)()
    output = check_output(await workflow.execute(TASK, tuner), workflow)
    assert type(output) is WorkflowOutput
    assert output.answer.get_text_content() == "The answer is 12."
    assert (output.reward, output.metrics) == (1.0, {"tools": 2.0})
    assert len(tracker.turns) == 3


def test_an_output_of_agentscope_with_nothing_in_it_is_an_empty_output():
    class Solve(Workflow):
        async def execute(self, task, tuner): ...

    output = check_output(tuner_output_class()(), Solve())
    assert (output.answer, output.reward, output.metrics) == (None, None, {})


async def test_the_model_is_agentscopes_own_without_retries_and_takes_its_options(make_tuner):
    tuner, _, policy = make_tuner(["Hello"])
    model = tuner.model(generate_kwargs={"temperature": 0.3, "max_tokens": 5})
    assert type(model) is OpenAIChatModel
    assert (model.stream, model.client.max_retries) == (False, 0)
    await model([{"role": "user", "content": "Hi"}])
    ((_, sampling),) = policy.calls
    assert (sampling.temperature, sampling.max_tokens) == (0.3, 5)


async def test_calls_and_failures_are_counted_by_tool_as_their_results_say(make_tuner):
    call = '<tool_call>\n{"name": "%s",  "arguments": {"expression":"%s"}}\n</tool_call>'
    answers = [call % ("calculate", "2+2"), call % ("calculate", "7*7"), call % ("invented", "1"), "Enough."]
    tuner, _, _ = make_tuner(answers)
    await make_agent(tuner.model("solver"), [])(Msg("user", TASK.query, "user"))
    assert tuner.tool_log.uses["calculate"] == ToolUse(2, 1, "Error: '7*7'", {"said_no": 1})
    assert (tuner.tool_log.uses[UNKNOWN_TOOL].calls, tuner.tool_log.uses[UNKNOWN_TOOL].errors) == (1, 1)


async def test_structured_output_is_a_reply_that_was_made_to_call_a_tool(make_tuner, chat_format):
    class Number(BaseModel):
        number: int

    answers = ['generate_response", "arguments": {"number": 12}}\n</tool_call>', "It is 12."]
    tuner, tracker, _ = make_tuner(answers)
    reply = await make_agent(tuner.model("solver"), [])(Msg("user", TASK.query, "user"), structured_model=Number)
    assert (reply.metadata, reply.get_text_content()) == ({"number": 12}, "It is 12.")
    assert chat_format.decode(tracker.turns[0].prompt_ids).endswith('<tool_call>\n{"name": "')
    assert tuner.failures == []


async def test_options_that_the_model_class_does_not_have_are_refused(make_tuner):
    tuner, _, _ = make_tuner([])
    with pytest.raises(WorkflowError, match=r"got 'generate_kwarg'.*Did you mean 'generate_kwargs'\?"):
        tuner.model(generate_kwarg={})


def test_training_defaults_are_for_agentscope_2():
    with pytest.raises(MissingDependency, match=r"is for AgentScope 2\.x"):
        training_defaults()


async def test_tools_that_act_on_this_machine_are_told_of_once(make_tuner, caplog):
    tuner, _, _ = make_tuner(lambda prompt: "Done.", context_length=32768)
    toolkit = Toolkit()
    for function in (execute_shell_command, view_text_file, write_text_file):
        toolkit.register_tool_function(function)
    for _ in range(2):
        agent = ReActAgent(
            name="a", sys_prompt="", model=tuner.model("solver"), formatter=OpenAIChatFormatter(), toolkit=toolkit
        )
        await agent(Msg("user", "Go.", "user"))
    told = [record.getMessage() for record in caplog.records if "act on this machine" in record.getMessage()]
    assert len(told) == 1 and "its tools execute_shell_command, write_text_file act on this machine" in told[0]
