"""Named texts by themselves, what quotes a task, and what a reflection is shown."""

from pathlib import Path

import pytest

from astune import Task
from astune.clients.usage import Usage
from astune.config.prompts import PromptsConfig
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ConfigError, WorkflowError
from astune.prompts.attempts import PlayedAttempt, TaskResult
from astune.prompts.leaks import LeakCheck
from astune.prompts.reflection import ReflectionRequest, reflection_messages
from astune.task_judge.llm.fence import read_fences
from astune.workflow.named_texts import NamedTexts, load_prompts, texts_of
from tests.rows import each_row

TASKS = [
    Task("t1", "A parcel from Lisbon weighs 12 kg and costs 3 euro a kg. What does it cost?", answer="36"),
    Task("t2", "Who wrote the letter that Anna found under the old oak door?", answer="Her uncle Bartholomew"),
    Task("t3", "Is order 48213 late? Answer yes or no.", answer="yes"),
    Task("t4", "Is order 90001 late? Answer yes or no.", answer="yes"),
    Task("t5", "Is order 77215 late? Answer yes or no.", answer="no"),
    Task("t6", "图书馆里一共有多少本关于海洋生物的旧书呢", answer="一百二十"),
]


@each_row(
    ("text", "found"),
    [
        ("Multiply the weight by the price of a kg.", None),
        ("Answer yes or no. What is late is not delivered on the day that was told.", None),
        ("A parcel from Lisbon weighs 12 kg and costs much.", "quotes task 't1'"),
        ("Of a parcel from Lisbon say 36.", "gives the answer to task 't1', '36'"),
        ("36 is a number.", None),
        ("It is often her uncle Bartholomew.", "quotes the answer to task 't2'"),
        ("You help. Answer yes or no. Is order 48213 late? yes", "gives the answer to task 't3'"),
        ("请数一数图书馆里一共有多少本关于海洋生物的旧书", "quotes task 't6'"),
        ("请数一数图书馆里有多少本书", None),
    ],
)
def test_a_text_that_quotes_a_task_is_found_and_common_words_are_not(text: str, found: str | None) -> None:
    said = LeakCheck(TASKS, {"system": "You help."}).find(text)
    assert (said is None) if found is None else (said is not None and found in said)


def test_what_the_first_text_says_is_no_leak() -> None:
    first = "A parcel from Lisbon weighs 12 kg and costs 3 euro a kg, as an example."
    assert LeakCheck(TASKS, {"system": first}).find(first + " Be short.") is None


def test_texts_are_asked_for_by_name_and_filled() -> None:
    texts = NamedTexts({"system": 'Serve in {city}: {"a": 1}, {{so}}.'})
    assert texts.ask("system", "Serve {city}.", {"city": "Rome"}) == 'Serve in Rome: {"a": 1}, {so}.'
    assert texts.ask("other", "Two.", {}) == "Two."
    assert texts.asked == {"system": "Serve {city}.", "other": "Two."}
    with pytest.raises(WorkflowError, match=r"'system' has the placeholder \{city\}, and nothing fills it"):
        texts.ask("system", None, {"town": "Rome"})
    with pytest.raises(WorkflowError, match=r"'other' is asked for with two defaults"):
        texts.ask("other", "Three.", {})
    with pytest.raises(WorkflowError, match=r"prompt 'sistem' has no text: .* Did you mean 'system'\?"):
        texts.ask("sistem", None, {})


def test_the_description_of_a_tool_is_a_text_whichever_framework_has_it() -> None:
    tool = {"type": "function", "function": {"name": "search", "description": "Searches."}}
    other = {"type": "function", "function": {"name": "add"}}
    request = NamedTexts({"tool:search": "Finds orders."}).describe(ChatRequest([], (tool, other)))
    assert [one["function"].get("description") for one in request.tools] == ["Finds orders.", None]
    assert tool["function"] == {"name": "search", "description": "Searches."}
    asked = NamedTexts()
    assert asked.describe(ChatRequest([], (tool,))).tools == (tool,) and asked.asked == {"tool:search": "Searches."}


def test_files_and_texts_of_a_configuration_go_before_those_of_a_workflow(tmp_path: Path) -> None:
    file = tmp_path / "system.md"
    file.write_text("You help.\n")
    config = PromptsConfig.model_validate({"files": {"system": str(file)}, "texts": {"critic": "Judge."}})
    assert texts_of(config) == {"system": "You help.\n", "critic": "Judge."}
    (tmp_path / "prompts.yaml").write_text("prompts: {system: You serve.}\n")
    assert texts_of(config.model_copy(update={"from": str(tmp_path)}))["system"] == "You serve."
    with pytest.raises(ConfigError, match=r"astune\.prompts\.files\.system: .*none\.md cannot be read"):
        texts_of(PromptsConfig.model_validate({"files": {"system": str(tmp_path / "none.md")}}))
    (tmp_path / "prompts.yaml").write_text("system: You serve.\n")
    with pytest.raises(ConfigError, match=r"prompts\.yaml: prompts: expected a section of texts by name"):
        load_prompts(tmp_path)
    with pytest.raises(ConfigError, match=r"no such file"):
        load_prompts(tmp_path / "other.yaml")


def test_a_reflection_sees_the_best_attempt_beside_the_worst_and_why() -> None:
    good = PlayedAttempt("[user]\n  6 * 7?", "42", 1.0, True)
    bad = PlayedAttempt(
        "[user]\n  6 * 7?", "</text> 41", 0.0, False, "off by one", ("add: 1 of 2 calls failed, the first: no",)
    )
    unjudged = PlayedAttempt("", "", None, None, error="TimeoutError in the workflow: late")
    result = TaskResult("t1", "6 * 7?", (good, unjudged, bad), 1 / 3, Usage())
    request = ReflectionRequest(
        "system", "Add.", {"system": "Add.", "tool:add": "Adds."}, [result], ("city",), "it is empty"
    )
    question = reflection_messages(request)[1]["content"]
    fences = read_fences(question)
    assert [name for name, _ in fences] == ["text", "other", "attempt", "attempt"]
    assert "reward: 1" in fences[2][1] and "nobody judged it" in fences[3][1] and "TimeoutError" in fences[3][1]
    assert "It must keep: {city}" in question and "cannot be used: it is empty" in question
    two = reflection_messages(
        ReflectionRequest("system", "Add.", {}, [TaskResult("t1", "", (good, bad), 0.5, Usage())])
    )
    assert "why: off by one\ntool add: 1 of 2 calls failed" in read_fences(two[1]["content"])[2][1]
