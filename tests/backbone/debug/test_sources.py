"""What answers in a debug run: scripts, a person, chat APIs, over the tiny model's real template."""

import asyncio
import io
import json
import subprocess
import sys

import pytest

from astune.backbone.debug.sources.debug_model import choose_model
from astune.backbone.debug.sources.typed_answer import NotAnAnswer, read_typed_answer
from astune.backbone.debug.terminal import Interrupted, Terminal
from astune.config.schema import AstuneConfig
from astune.context_tracker.calls import Call, ChatRequest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.errors import ConfigError, ModelError, PolicyError
from astune.support.resources import tiny_model_dir
from astune.support.terminal import Console
from astune.testing import ScriptedChatServer
from astune.types import Sampling
from tests.rows import each_row

USER = {"role": "user", "content": "2 + 2?"}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
ADDING = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'


class Run:
    """One debug model, and trackers over it as an episode has one."""

    def __init__(self, model: str, lines=(), **debug) -> None:
        self.screen = io.StringIO()
        console = Console(file=self.screen, width=200)
        config = AstuneConfig.model_validate({"debug": {"model": model, **debug}})
        self.model = choose_model(config, Terminal(console, lines, stdin=io.StringIO("")))

    def episode(self, *requests: ChatRequest, task_id: str = "t", max_tokens: int = 200):
        model = self.model
        model.episode_started(task_id)
        tracker = ContextTracker(
            model.policy,
            model.chat_format,
            Sampling(max_tokens),
            max_turns=20,
            seed=1,
            wrap=lambda name, source: model.source or source,
        )

        async def play():
            return [await tracker.chat("solver", request) for request in requests]

        return asyncio.run(play())

    def ask(self, *tools, count=1, **options):
        return self.episode(*[ChatRequest([USER], tools)] * count, **options)


def functions(answer):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer.message["tool_calls"]]


MESSAGE = {"tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": 2}}}]}


@each_row(
    ("name", "text"),
    [
        ("a.yaml", "- tool_calls: [{function: {name: add, arguments: {a: 2, b: 2}}}]\n- The answer is 4.\n"),
        ("a.yml", "t:\n- tool_calls: [{name: add, arguments: {a: 2, b: 2}}]\n- The answer is 4.\nother: []\n"),
        ("a.json", json.dumps([MESSAGE, "The answer is 4."])),
        ("a.jsonl", json.dumps(MESSAGE) + "\n\n" + json.dumps("The answer is 4.") + "\n"),
        ("a.txt", ADDING + "\n---\nThe answer is 4.\n"),
    ],
)
def test_answers_come_from_a_file_in_turn_and_anew_for_every_episode(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    run = Run(f"scripted:{tmp_path / name}")
    for _ in range(2):
        first, second = run.ask(ADD, count=2)
        assert functions(first) == [("add", {"a": 2, "b": 2})]
        assert run.model.chat_format.decode(first.turn.output_ids) == ADDING + "<|im_end|>"
        assert second.message["content"] == "The answer is 4."
        assert second.turn.exact and second.turn.trainable
    with pytest.raises(PolicyError, match=rf"{name} has 2 answers.*model call 3 \(agent 'solver'\) asks for one more"):
        run.ask(ADD, count=3)


def test_an_unknown_task_names_the_nearest(tmp_path):
    (tmp_path / "a.yaml").write_text("task-1: [a]\n")
    with pytest.raises(PolicyError, match=r"no answers for task 'task-2'\. Did you mean 'task-1'\?"):
        Run(f"scripted:{tmp_path / 'a.yaml'}").ask(task_id="task-2")


def test_a_scripted_answer_is_cut_where_a_models_would_be(tmp_path):
    (tmp_path / "a.txt").write_text("one two three four five six seven")
    answer = Run(f"scripted:{tmp_path / 'a.txt'}").ask(max_tokens=3)[0]
    assert (len(answer.turn.output_ids), answer.finish_reason) == (3, "length")


@each_row(
    ("name", "text", "message"),
    [
        ("a.yaml", "- 42\n", r"a\.yaml: answer 1: expected a text or an assistant message.*put a number into quotes"),
        ("a.yaml", "- x\n- {contnt: y}\n", r"answer 2: unknown key 'contnt'\. Did you mean 'content'\?"),
        ("a.yaml", "t: [{tool_calls: [{name: 3}]}]\n", r"task 't', answer 1: tool_calls\[0\]: expected"),
        ("a.yaml", "- 'x\n", r"a\.yaml: not valid YAML: (.|\n)*line \d"),
        ("a.jsonl", '"x"\n{"content": }\n', r"a\.jsonl:2: not valid JSON"),
        ("a.json", '{"t": "x"}', r"a\.json: task 't': expected a list of answers, got a text"),
        ("a.json", '[{"role": "user", "content": "x"}]', "expected role 'assistant', got 'user'"),
    ],
)
def test_a_broken_file_says_where(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        Run(f"scripted:{tmp_path / name}")


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "answers.yaml").write_text("[]")
    with pytest.raises(ConfigError, match=r"no file .*answer\.yaml\. Did you mean 'answers\.yaml'\?"):
        Run(f"scripted:{tmp_path / 'answer.yaml'}")


SCRIPT = """
def of_prompt(prompt):
    return "4" if "2 + 2?" in prompt else "?"

async def of_messages(messages, tools):
    names = [tool["function"]["name"] for tool in tools]
    return {"content": f"{len(messages)} {names}"}

def broken(prompt):
    return 1 / 0

def wrong(prompt):
    return 7

def three(a, b, c):
    return ""
"""


def test_a_function_of_the_user_answers(tmp_path):
    (tmp_path / "s.py").write_text(SCRIPT)
    spec = f"scripted:{tmp_path / 's.py'}"
    assert Run(f"{spec}:of_prompt").ask()[0].message["content"] == "4"
    assert Run(f"{spec}:of_messages").ask(ADD)[0].message["content"] == "1 ['add']"
    with pytest.raises(PolicyError, match="broken, model call 1: ZeroDivisionError"):
        Run(f"{spec}:broken").ask()
    with pytest.raises(PolicyError, match="wrong, model call 1: expected a text or an assistant message, got 7"):
        Run(f"{spec}:wrong").ask()
    with pytest.raises(ConfigError, match="it takes 3 arguments"):
        Run(f"{spec}:three")


def test_a_person_answers_in_text_and_in_calls():
    lines = ["4", "/think Two calls.", '/call add {"a": 2, "b": 2}', '/call add {"a": 4, "b": 0}', ""]
    run = Run("human", [*lines, "/raw", "<think>", "Hm.", "</think>", "", "Yes.", "."])
    plain, calling, raw = run.ask(ADD, count=3)
    assert run.model.chat_format.decode(plain.turn.output_ids) == "4<|im_end|>"
    assert functions(calling) == [("add", {"a": 2, "b": 2}), ("add", {"a": 4, "b": 0})]
    assert calling.message["reasoning_content"] == "Two calls."
    assert (raw.message["content"], raw.message["reasoning_content"]) == ("Yes.", "Hm.")


def test_what_cannot_be_sent_is_refused_with_the_reason_and_the_rest_is_kept():
    lines = ['/call add {"a": 1, "b": 2}', '/call ad {"a": 1}', "/call add {a: 1}", '/call add {"a": 1}', "/cal x"]
    run = Run("human", [*lines, "/undo", '/call add {"a": 5, "b": 6}', "I add."])
    answer = run.ask(ADD)[0]
    assert (functions(answer), answer.message["content"]) == ([("add", {"a": 5, "b": 6})], "I add.")
    screen = run.screen.getvalue()
    for reason in (
        "there is no tool 'ad'. Did you mean 'add'?",
        "the arguments of add are not a JSON object (Expecting property name",
        "add needs 'b'. Its arguments: a, b",
        "there is no /cal. Did you mean '/call'?",
    ):
        assert f"Not sent: {reason}" in screen


def test_raw_lines_that_are_refused_are_kept_and_corrected():
    lines = ["/raw", "<tool_call>", '{"name": "add", "arguments": {"a": 2 "b": 2}}', "</tool_call>", "."]
    run = Run("human", [*lines, '.2 {"name": "add", "arguments": {"a": 2, "b": 2}}', "."])
    assert functions(run.ask(ADD)[0]) == [("add", {"a": 2, "b": 2})]
    assert "cannot be read as one (Expecting ',' delimiter" in run.screen.getvalue()


def test_a_person_sees_what_the_agent_sent():
    run = Run("human", ["/tools", "/messages", "/help", "4"])
    run.ask(ADD)
    screen = run.screen.getvalue()
    assert 'add: Adds.\n    a: {"type": "integer"}' in screen
    assert "[user] 2 + 2?" in screen
    assert "/call NAME {arguments}" in screen


def test_the_end_of_the_input_and_ctrl_c_end_the_call(monkeypatch):
    with pytest.raises(PolicyError, match="model call 1 of agent 'solver' has no answer: the input ended"):
        Run("human").ask()
    run = Run("human")

    def interrupted(terminal: Terminal, prompt: str) -> str:
        raise Interrupted

    monkeypatch.setattr(Terminal, "ask", interrupted)
    with pytest.raises(Interrupted):
        run.ask()


@pytest.fixture(scope="module")
def asked():
    calls = []

    class Kept:
        is_policy = True

        async def answer(self, call: Call, sampling):
            calls.append(call)
            raise PolicyError("enough")

    chat_format = ChatFormat.load(tiny_model_dir())
    for tools in ((ADD,), ()):
        policy = type("P", (), {"context_length": 9000})()
        tracker = ContextTracker(policy, chat_format, Sampling(9), max_turns=2, seed=1, wrap=lambda *_: Kept())
        with pytest.raises(PolicyError):
            asyncio.run(tracker.chat("a", ChatRequest([USER], tools)))
    return chat_format, *calls


def test_an_edited_answer_is_raw_text_or_calls_or_both(asked):
    chat_format, call, _ = asked
    typed = {text: chat_format.decode(read_typed_answer(chat_format, call, text).output_ids) for text in ("4", ADDING)}
    assert typed == {"4": "4<|im_end|>", ADDING: ADDING + "<|im_end|>"}
    assert read_typed_answer(chat_format, call, "4<|im_end|>") == read_typed_answer(chat_format, call, "4")
    both = read_typed_answer(chat_format, call, 'I add.\n/call add {"a": 2, "b": 2}')
    assert chat_format.decode(both.output_ids) == f"I add.\n{ADDING}<|im_end|>"
    assert (set(both.logprobs), both.finish_reason) == ({0.0}, "stop")


@each_row(
    ("text", "reason"),
    [
        (ADDING.replace("2}", "2"), "looks like a tool call and cannot be read as one"),
        ("<tool_call>add(2, 2)</tool_call>", "begins with '<tool_call>"),
        (ADDING.replace('"add"', '"adds"'), "there is no tool 'adds'. Did you mean 'add'?"),
        (ADDING.replace('"b"', '"c"'), "add needs 'b'"),
        ("/call add [1]", "are not a JSON object but a JSON list"),
        (f"/call add {{}}\n{ADDING}", "add needs 'a', 'b'"),
    ],
)
def test_an_edit_that_is_no_tool_call_is_refused(text, reason, asked):
    chat_format, call, _ = asked
    with pytest.raises(NotAnAnswer) as caught:
        read_typed_answer(chat_format, call, text)
    assert reason in str(caught.value)


def test_a_call_without_tools_is_refused(asked):
    chat_format, _, call = asked
    for text in (ADDING, "/call add {}"):
        with pytest.raises(NotAnAnswer, match="the agent offers no tools"):
            read_typed_answer(chat_format, call, text)


def endpoint(server, **options):
    return {"base_url": server.base_url, "model": "m", "max_retries": 0, **options}


def test_the_next_endpoint_answers_where_one_fails():
    with ScriptedChatServer([500, "never"]) as broken, ScriptedChatServer(["4", "5"]) as good:
        run = Run("endpoints", endpoints=[endpoint(broken), endpoint(good, model="good")])
        first, second = run.ask(count=2, max_tokens=50)
        assert (len(broken.requests), len(good.requests)) == (1, 2)
        assert good.requests[0]["max_tokens"] == 50
    assert (first.message["content"], second.message["content"]) == ("4", "5")
    assert (first.turn.exact, first.turn.excluded) == (False, "inexact")
    assert "astune.debug.endpoints.0: " in run.screen.getvalue()
    assert f"Answered instead: {good.base_url} (good)" in run.screen.getvalue()


def test_the_reason_of_each_is_told_where_all_fail():
    with ScriptedChatServer([500]) as one, ScriptedChatServer([503]) as two:
        run = Run("endpoints", endpoints=[endpoint(one), endpoint(two)])
        with pytest.raises(PolicyError) as caught:
            run.ask()
    assert all(f"astune.debug.endpoints.{at}: " in str(caught.value) for at in (0, 1))


def test_an_endpoint_that_serves_the_policy_is_asked_for_token_ids():
    with ScriptedChatServer(["4"]) as server:
        Run("endpoints", endpoints=[endpoint(server, trainable=True)]).ask()
        assert server.requests[0]["return_token_ids"] is True


def test_an_address_without_a_server_is_told_at_the_start():
    with ScriptedChatServer([]) as server:
        gone = server.base_url
    with pytest.raises(ConfigError, match=rf"astune\.debug\.model: cannot reach {gone}"):
        Run(f"{gone}#m")
    with pytest.raises(ConfigError, match=rf"astune\.debug\.endpoints\.0: cannot reach {gone}"):
        Run("endpoints", endpoints=[{"base_url": gone, "model": "m"}])
    with pytest.raises(ConfigError, match=r"astune\.debug\.endpoints: there are none"):
        Run("endpoints")


@pytest.fixture
def listing():
    """A server that also lists its models."""
    made = []

    def make(answers, *names):
        server = ScriptedChatServer(answers, models=names)
        server.__enter__()
        made.append(server)
        return server

    yield make
    for server in made:
        server.__exit__()


def test_an_address_takes_the_only_model_and_else_lists_them(listing):
    one, two = listing(["4"], "Qwen3-8B"), listing([], "small", "large")
    run = Run(one.base_url)
    assert run.model.name == f"endpoint {one.base_url} (Qwen3-8B)"
    assert run.ask()[0].message["content"] == "4"
    assert one.requests[0]["model"] == "Qwen3-8B"
    with pytest.raises(ConfigError, match=r"has small, large: say which, as in .*#small"):
        Run(two.base_url)
    with pytest.raises(ConfigError, match=r"has no model 'larg'\. Did you mean 'large'\?"):
        Run(f"{two.base_url}#larg")


def test_other_choices_are_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"expected a file that ends in \.yaml"):
        Run("scripted:answers.csv")
    with pytest.raises(ModelError, match="there is no folder"):
        config = AstuneConfig.model_validate({"debug": {"model": "human"}, "model": {"path": "./nowhere"}})
        choose_model(config, Terminal(Console(file=io.StringIO()), stdin=io.StringIO("")))


def test_only_a_local_model_loads_torch():
    code = (
        "import sys\nfrom rich.console import Console\n"
        "from astune.backbone.debug.sources.debug_model import choose_model\n"
        "from astune.backbone.debug.terminal import Terminal\nfrom astune.config.schema import AstuneConfig\n"
        "choose_model(AstuneConfig.model_validate({'debug': {'model': 'human'}}), Terminal(Console()))\n"
        "print(*{'torch', 'transformers'} & set(sys.modules))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == ""
