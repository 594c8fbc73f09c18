"""Which results of tools count as failed where no framework says so, and that each counts once."""

from astune.types import UNKNOWN_TOOL, ToolUse
from astune.workflow.tool_log import ToolLog, says_it_failed
from tests.rows import each_row


@each_row(
    "text",
    [
        "Error: division by zero",  # AgentScope 1.x, LangGraph, and most by hand
        "Error occurred when calling MCP tool: Connection closed",  # AgentScope 1.x
        "FunctionNotFoundError: Cannot find the function named x",  # AgentScope 1.x
        "An error occurred while running the tool. Please try again. Error: gone",  # OpenAI Agents
        "Error invoking tool 'x' with kwargs {} with error:\n gone",  # LangGraph
        "Encountered error: gone",  # LlamaIndex
        "I encountered an error while trying to use the tool.",  # CrewAI
        "Error executing tool x: gone",  # MCP
        "**Error**: gone",
        "[ERROR] gone",
        "Tool error: gone",
        "HTTP error 503",
        "ZeroDivisionError('division by zero')",
        "requests.exceptions.ConnectionError: gone",
        "Exception: gone",
        "Traceback (most recent call last):\n  File ...",
        "Tool call failed: gone",
        "Failed to connect",
        '{"error": "gone"}',
        '{"isError": true, "content": []}',
        '{"status": "error"}',
    ],
)
def test_a_result_that_says_that_it_failed_counts_as_failed(text: str) -> None:
    assert says_it_failed(text)


@each_row(
    "text",
    [
        "84",
        "",
        "No errors.",
        "0 errors, 3 warnings",
        "Error handling in Python: an introduction",
        "Exceptions and how to raise them",
        "The standard error is 0.3",
        "2 tests failed, 3 passed",
        "Failed states: a list",
        "It worked. Error: none",
        '{"error": null, "result": 84}',
        '{"errors": [], "ok": true}',
        "{not json",
        "[1, 2]",
    ],
)
def test_a_result_that_is_about_something_else_does_not(text: str) -> None:
    assert not says_it_failed(text)


def test_results_count_once_and_only_those_of_calls_that_a_model_made() -> None:
    def result(call_id: str, text: object) -> dict[str, object]:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    log, tools = ToolLog(), [{"type": "function", "function": {"name": "add"}}]
    shown = result("example", "Error: in the prompt, where nobody called")
    log.add_request([shown], tools)
    calls = [
        {"id": f"c{n}", "function": {"name": name, "arguments": "{}"}} for n, name in enumerate(["add"] * 2 + ["x"])
    ]
    log.add_calls({"role": "assistant", "tool_calls": calls})
    part = [{"type": "text", "text": "Error: gone"}]
    messages = [
        shown,
        {"role": "assistant", "tool_calls": calls},
        result("c0", "7"),
        result("c1", part),
        result("c2", ""),
    ]
    for _ in range(2):
        log.add_request(messages, tools)
    assert log.uses == {
        "add": ToolUse(2, 1, "Error: gone", {"said_no": 1, "repeated": 1}),
        UNKNOWN_TOOL: ToolUse(1, 0, "", {"unknown": 1}),
    }
    assert log.metrics == {"tool_calls": 3.0}
