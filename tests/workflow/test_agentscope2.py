"""Real AgentScope 2.x agents."""

import asyncio
import json
from functools import partial

import pytest

from astune.config.rollout import ContextConfig as ContextRules
from astune.context_tracker.cuts import CutTracker
from astune.errors import WorkflowError
from astune.types import UNKNOWN_TOOL, ToolUse, WorkflowOutput
from astune.workflow.workflow_base import Workflow, check_output

pytest.importorskip("agentscope", minversion="2.0")
from agentscope.agent import Agent, ContextConfig
from agentscope.formatter import DeepSeekChatFormatter
from agentscope.message import TextBlock, UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.tool import BackendBase, Bash, Edit, FunctionTool, Read, ToolChunk, ToolGroup, Toolkit, Write

from astune.workflow.agentscope import training_defaults
from tests.rows import each_row

ANSWERS = [
    '<tool_call>\n{"name": "calculate",  "arguments": {"expression":"2+2"}}\n</tool_call>',
    'So far 4.\n<tool_call>\n{"name": "calculate",  "arguments": {"expression":"4*3"}}\n</tool_call>',
    "The answer is 12.",
]


def make_agent(model, ran, **options):
    def calculate(expression: str) -> ToolChunk:
        """Work out an expression.

        Args:
            expression: what to work out
        """
        ran.append(expression)
        return ToolChunk(content=[TextBlock(text=str({"2+2": 4, "4*3": 12}[expression]))])

    toolkit = Toolkit(tools=[FunctionTool(calculate)])
    return Agent(name="solver", system_prompt="You solve.", model=model, toolkit=toolkit, **options)


async def reply_of(agent, question="What is (2 + 2) * 3?"):
    return (await agent.reply(UserMsg("user", question))).get_text_content()


@pytest.mark.parametrize("options", [{}, {"stream": True}])
async def test_an_agent_runs_its_tool_and_its_calls_are_one_exact_timeline(make_tuner, chat_format, options):
    tuner, tracker, policy = make_tuner(ANSWERS)
    ran = []
    agent = make_agent(tuner.model("solver", **options), ran, **training_defaults())
    assert await reply_of(agent) == "The answer is 12."
    assert ran == ["2+2", "4*3"]
    assert [turn.agent for turn in tracker.turns] == ["solver"] * 3
    assert [turn.prompt_ids for turn in tracker.turns] == [prompt_ids for prompt_ids, _ in policy.calls]
    (timeline,) = tracker.timelines()
    last = tracker.turns[-1]
    assert timeline.token_ids == last.prompt_ids + last.output_ids
    sampled = [chat_format.decode(timeline.token_ids[span.start : span.stop]) for span in timeline.spans]
    assert sampled == [answer + "<|im_end|>" for answer in ANSWERS]
    assert sum(timeline.loss_mask) == sum(len(turn.output_ids) for turn in tracker.turns)
    text = chat_format.decode(timeline.token_ids)
    assert "<tool_response>\n12\n</tool_response>" in text
    assert "system-reminder" not in text  # no wall clock


async def test_the_prompt_of_a_compression_holds_no_time(make_tuner, chat_format):
    summary = dict.fromkeys(ContextConfig().summary_schema["properties"], "s")
    forced = " " + json.dumps(summary) + "}\n</tool_call>"
    tuner, tracker, _ = make_tuner(
        lambda prompt: forced if "The current time" in prompt else "Fine.", context_length=16384
    )
    short = ContextConfig(trigger_ratio=0.05, reserve_ratio=0.01)
    agent = make_agent(tuner.model("solver"), [], context_config=short, **training_defaults())
    for _ in range(2):
        await agent.reply(UserMsg("user", "I like it warm. " * 150))
    asked = [chat_format.decode(turn.prompt_ids) for turn in tracker.turns]
    (compression,) = (prompt for prompt in asked if "The current time" in prompt)
    assert "The current time is unknown (UTC)." in compression


async def test_an_overflow_that_a_compression_gets_over_is_no_failure(make_tuner):
    tuner, _, _ = make_tuner(lambda prompt: "Fine.")
    agent = make_agent(
        tuner.model("solver"), [], context_config=ContextConfig(trigger_ratio=0.3), **training_defaults()
    )
    for _ in range(2):  # the summary of the first does not fit, so AgentScope leaves it out
        assert await reply_of(agent, "I like it warm. " * 150) == "Fine."
    assert tuner.failures == [] and tuner.recovered > 0


async def test_where_the_run_cuts_conversations_an_agent_keeps_its_own_whole(make_tuner):
    cuts = partial(CutTracker, ContextRules(strategy="restart", at=0.6, prompt="Sum"))
    tuner, tracker, _ = make_tuner(
        lambda prompt: "All fine." if prompt.rpartition("user")[2].startswith("\nSum") else "Fine.", kind=cuts
    )
    agent = make_agent(tuner.model("solver"), [], **training_defaults())
    for _ in range(3):
        assert await reply_of(agent, "I like it warm. " * 100) == "Fine."
    assert {turn.fork for turn in tracker.turns if turn.cut is not None} == {"context_cut"}
    assert len(agent.state.context) == 6 and all(turn.tools for turn in tracker.turns)


async def test_two_agents_run_side_by_side_each_with_its_own_timeline(make_tuner):
    tuner, tracker, _ = make_tuner(lambda prompt: "4" if "2 + 2" in prompt else "9")
    first = Agent(name="a", system_prompt="", model=tuner.model("first"), **training_defaults())
    second = Agent(name="b", system_prompt="", model=tuner.model("second", trainable=False), **training_defaults())
    assert (await first.reply(UserMsg("user", "2 + 2?"))).get_text_content() == "4"
    assert (await second.reply(UserMsg("user", "3 * 3?"))).get_text_content() == "9"
    assert [(line.agent, line.trained_tokens > 0) for line in tracker.timelines()] == [
        ("first", True),
        ("second", False),
    ]


async def test_the_model_is_agentscopes_own_with_our_context_size_and_no_retries(make_tuner):
    tuner, _, _ = make_tuner([], context_length=777)
    model = tuner.model()
    assert type(model) is OpenAIChatModel
    assert (model.context_size, model.stream, model.max_retries, model.client.max_retries) == (777, False, 0, 0)


async def test_options_of_the_model_class_pass_through(make_tuner):
    tuner, _, policy = make_tuner(["Hello"])
    parameters = OpenAIChatModel.Parameters(temperature=0.3, max_tokens=5)
    agent = Agent(
        name="a",
        system_prompt="",
        model=tuner.model(parameters=parameters, formatter=DeepSeekChatFormatter()),
        **training_defaults(),
    )
    await reply_of(agent)
    ((_, sampling),) = policy.calls
    assert (sampling.temperature, sampling.max_tokens) == (0.3, 5)


async def test_options_that_the_model_class_does_not_have_are_refused(make_tuner):
    tuner, _, _ = make_tuner([])
    with pytest.raises(WorkflowError, match=r"got 'paramters'.*Did you mean 'parameters'\?"):
        tuner.model(paramters={})
    with pytest.raises(WorkflowError, match="sets 'client_kwargs' itself"):
        tuner.model(client_kwargs={})


@pytest.mark.fault(
    "Tools and environments",
    "an agent of AgentScope 2.x waits for a permission that nobody gives",
    "an error that says what to do",
)
async def test_an_agent_without_training_defaults_is_caught_waiting_for_a_permission(make_tuner):
    class Solve(Workflow):
        async def execute(self, task, tuner): ...

    tuner, _, _ = make_tuner(ANSWERS)
    ran = []
    agent = make_agent(tuner.model("solver"), ran)
    message = await agent.reply(UserMsg("user", "What is (2 + 2) * 3?"))
    assert ran == []
    for answer in (message, message.get_text_content()):
        with pytest.raises(WorkflowError, match="asked for permission to run a tool and stopped"):
            check_output(WorkflowOutput(answer=answer), Solve())


async def test_structured_output_begins_with_a_call_that_is_context_and_not_trained(make_tuner, chat_format):
    tuner, tracker, _ = make_tuner([' {"number": 12}}\n</tool_call>'])
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    result = await tuner.model().generate_structured_output([UserMsg("user", "Which number?")], schema)
    assert result.content == {"number": 12}
    (turn,) = tracker.turns
    start = '<tool_call>\n{"name": "generate_structured_output", "arguments":'
    assert chat_format.decode(turn.prompt_ids).endswith(start)
    assert chat_format.decode(turn.output_ids) == ' {"number": 12}}\n</tool_call><|im_end|>'
    assert tuner.failures == []


async def test_training_defaults_are_new_objects_at_every_call():
    assert training_defaults()["state"] is not training_defaults()["state"]


async def test_a_model_call_that_fails_is_told_by_the_episode_and_not_by_agentscopes_log(make_tuner, capfd):
    tuner, _, _ = make_tuner([])  # no answer left to give
    agent = make_agent(tuner.model("solver"), [], **training_defaults())
    with pytest.raises(Exception, match="asked for one more"):
        await reply_of(agent)
    assert "attempt" not in capfd.readouterr().err


@pytest.mark.fault(
    "Tools and environments",
    "A tool raises from the first call on",
    "Calls and errors by tool in metrics, table and report; a warning after eight calls that all failed",
)
async def test_calls_and_failures_are_counted_by_tool_each_once(make_tuner):
    call = '<tool_call>\n{"name": "%s", "arguments": {"expression": "%s"}}\n</tool_call>'
    answers = [call % ("calculate", "2+2"), call % ("calculate", "7*7"), call % ("invented", "1"), "Enough."]
    tuner, _, _ = make_tuner(answers)
    agent = make_agent(tuner.model("solver"), [], **training_defaults())
    assert await reply_of(agent) == "Enough."
    assert dict(tuner.tool_log.uses) == {
        "calculate": ToolUse(calls=2, errors=1, message="'7*7'", causes={"said_no": 1}),
        UNKNOWN_TOOL: ToolUse(1, 1, tuner.tool_log.uses[UNKNOWN_TOOL].message, {"unknown": 1}),
    }
    assert tuner.tool_log.metrics == {"tool_calls": 3.0}


async def test_an_agent_that_calls_none_of_its_tools_has_called_0_and_one_without_tools_says_nothing(make_tuner):
    tuner, _, _ = make_tuner(["The answer is 12."])
    assert tuner.tool_log.metrics == {}
    assert await reply_of(make_agent(tuner.model("solver"), [], **training_defaults())) == "The answer is 12."
    assert tuner.tool_log.metrics == {"tool_calls": 0.0} and tuner.tool_log.uses == {}


class Sandbox(BackendBase):
    """Stands for the backend of a workspace: nothing here calls a tool."""


Sandbox.__abstractmethods__ = frozenset()


@each_row("in_a_thread", [False, True])
@each_row(
    ("tools", "said"),
    [
        (lambda: [Bash(), Read(), Write(), Edit()], "its tools Bash, Write, Edit act on this machine"),
        (lambda: [Bash(backend=Sandbox()), Write(backend=Sandbox())], None),
        (lambda: [Bash(backend=Sandbox()), Write()], "its tools Write act on this machine"),
        (lambda: [Read()], None),
    ],
    ids=["local", "sandbox", "both", "reading"],
)
async def test_tools_that_act_on_this_machine_are_told_of_once(make_tuner, caplog, tools, said, in_a_thread):
    tuner, _, _ = make_tuner(lambda prompt: "Done.", context_length=32768)

    async def ask_twice():
        toolkit = Toolkit(tools=[*tools(), FunctionTool(nothing)])
        agent = Agent(name="a", system_prompt="", model=tuner.model("solver"), toolkit=toolkit, **training_defaults())
        for _ in range(2):
            await reply_of(agent)

    await (asyncio.to_thread(asyncio.run, ask_twice()) if in_a_thread else ask_twice())
    told = [record.getMessage() for record in caplog.records if "act on this machine" in record.getMessage()]
    assert [said in each for each in told] == ([True] if said else [])
    caplog.clear()
    nobody = Agent(name="b", system_prompt="", model=tuner.model("solver"), toolkit=Toolkit(), **training_defaults())
    await reply_of(nobody)
    assert not caplog.records, "what one agent was handed is not another's"


async def test_tools_of_a_group_that_is_not_active_are_not_offered_and_not_told_of(make_tuner, caplog):
    tuner, _, _ = make_tuner(lambda prompt: "Done.", context_length=32768)
    toolkit = Toolkit(tool_groups=[ToolGroup(name="shell", description="A shell.", tools=[Bash()])])
    agent = Agent(name="a", system_prompt="", model=tuner.model("solver"), toolkit=toolkit, **training_defaults())
    await reply_of(agent)
    assert "act on this machine" not in caplog.text


def nothing() -> ToolChunk:
    """Do nothing."""
    return ToolChunk(content=[])


async def test_the_description_of_a_tool_and_a_skill_are_shown_as_they_are_tuned(make_tuner, tmp_path):
    (tmp_path / "refunds").mkdir()
    skill = "---\nname: refunds\ndescription: How to refund.\n---\nAsk for the order."
    (tmp_path / "refunds" / "SKILL.md").write_text(skill)
    view = '<tool_call>\n{"name": "Skill", "arguments": {"skill": "refunds"}}\n</tool_call>'
    for given in ({}, {"tool:look_up": "Finds an order.", "skill:refunds": "Refund at once."}):
        tuner, tracker, _ = make_tuner([view, "Done."])
        tuner._texts.given.update(given)

        def look_up(order: str) -> ToolChunk:
            """Look an order up."""
            return ToolChunk(content=[TextBlock(text=order)])

        toolkit = Toolkit(tools=[FunctionTool(look_up)], skills_or_loaders=[str(tmp_path / "refunds")])
        model = tuner.model("solver")
        agent = Agent(name="s", system_prompt="You help.", model=model, toolkit=toolkit, **training_defaults())
        assert await reply_of(agent) == "Done."
        tools = {tool["function"]["name"]: tool["function"] for tool in tracker.turns[0].tools}
        assert tools["look_up"]["description"] == given.get("tool:look_up", "Look an order up.")
        assert given.get("skill:refunds", "Ask for the order.") in tracker.turns[1].messages[-1]["content"]
        assert tuner._texts.asked["tool:look_up"] == "Look an order up."
        assert "Ask for the order." in tuner._texts.asked["skill:refunds"]
