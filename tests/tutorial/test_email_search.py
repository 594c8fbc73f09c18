"""The inboxes of tutorial/email_search: what is true in them, what an answer is worth, and the page's commands."""

import asyncio
import json
import random
import sys
from importlib import metadata
from itertools import combinations, islice, pairwise
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("agentscope")

from astune.config.judges import TaskJudgeConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.examples.conversation import conversation_rows
from astune.monitor import read_episodes
from astune.plugins import load_plugin
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedChatServer, ScriptedPolicy
from astune.types import Sampling, Task
from astune.workflow.tuner import Tuner
from tests.rows import each_row
from tests.tutorial.small import commands, run

sys.path.append(str(tutorial_dir() / "email_search"))
import inbox_players
import make_examples
from inbox_judge import BAD_CALL, MOST_BAD, NEAR, WORTH, InboxJudge, read_value
from inbox_players import TOOLS, Talk, oracle, stated
from inbox_tools import Mailbox
from inboxes import QUESTIONS, SPLITS, UNKNOWN, make_inbox, task_row

FOLDER = tutorial_dir() / "email_search"
AGENTSCOPE_2 = pytest.mark.skipif(metadata.version("agentscope")[0] != "2", reason="the agent is for AgentScope 2.x")
QUESTION = make_inbox(0).questions[2]
"""21 asks again, 41 corrects 80."""


def judged(talk: Talk):
    row = task_row(talk.question)
    task = Task(row["id"], row["query"], answer=row["answer"], metadata=row)
    return asyncio.run(InboxJudge(TaskJudgeConfig()).judge(task, talk.episode(task)))


def test_an_inbox_is_the_same_each_time_and_its_newest_statement_is_right() -> None:
    for number in (0, 1000, 2_000):
        inbox = make_inbox.__wrapped__(number)
        assert inbox == make_inbox(number)
        mails = {mail.message_id: mail for mail in inbox.mails}
        assert len(mails) == len(inbox.mails) and len(inbox.questions) == QUESTIONS
        assert sum(question.answer == UNKNOWN for question in inbox.questions) == 1
        for question in inbox.questions:
            thread = [mail for mail in inbox.mails if mail.subject.endswith(f"ticket {question.ticket}")]
            assert [mail.reply_to for mail in thread] == [None, *(mail.message_id for mail in thread)][: len(thread)]
            told = [(mail, value) for mail in thread if (value := stated(mail.body, question)) is not None]
            last = told[-1:]
            assert [(mail.message_id, value) for mail, value in last] == [(p, question.answer) for p in question.proof]


def test_no_inbox_is_in_two_splits() -> None:
    assert all(not {*one} & {*other} for one, other in combinations(SPLITS.values(), 2))


def test_players_come_out_in_the_right_order() -> None:
    rows = inbox_players.table()
    assert [name for name, *_ in rows] == ["oracle", "read_everything", "dont_know", "chance", "inventor"]
    rewards = [reward for _, reward, *_ in rows]
    assert rewards == sorted(rewards, reverse=True) and all(a - b > 0.1 for a, b in pairwise(rewards))
    assert rows[0][1:] == (1.0, 1.0, 1.0, 1.0, 1.0)


@each_row(
    ("calls", "outcome", "bad"),
    [
        ([["search"], ["read", 41], ["finish", "29", [41]]], "proved", 0),
        ([["search"], ["read", 41], ["finish", "$29", [41, 41]]], "right", 0),
        ([["search"], ["read", 41], ["finish", "29 dollars.", [41, 80]]], "right", 0),
        ([["search"], ["finish", "29", [41]]], "right", 0),
        ([["finish", "29", [41]]], "right", 1),
        ([["read", 41], ["finish", "29", [41]]], "right", 2),
        ([["search"], ["read", 41], ["finish", "17", [41]]], "wrong", 0),
        ([["search"], ["read", 41], ["finish", "29 or 17", [41]]], "wrong", 0),
        ([["search"], ["read", 41], ["finish", "", [41]]], "wrong", 0),
        ([["search"], ["read", 41], ["finish", UNKNOWN, []]], "unknown", 0),
        ([["search"], ["read", 41]], "nothing", 0),
        ([["search"], ["search"], ["read", 1]], "nothing", 2),
        ([["search"], ["read", 41], ["finish", "29", [41]], ["finish", "17", [41]]], "proved", 1),
        ([["search"], ["raw", "read_email", {"message_id": "41"}], ["finish", "29", [41]]], "right", 1),
        ([["raw", "fly", {}], ["raw", "read_email", {}], ["raw", "search_emails", {"keyword": "a"}]], "nothing", 3),
    ],
)
def test_what_an_answer_is_worth(calls, outcome, bad) -> None:
    verdict = judged(played(QUESTION, calls))
    assert verdict.metrics[outcome] == 1.0 and verdict.passed is (outcome in ("proved", "right"))
    assert sum(verdict.metrics[name] for name in ("invented", "malformed", "repeated", "late")) == bad
    assert WORTH[outcome] - NEAR - MOST_BAD <= verdict.reward + 1e-9 <= WORTH[outcome] + 2e-9
    assert verdict.reward <= WORTH[outcome] - min(MOST_BAD, BAD_CALL * bad) + 1e-9


def played(question, calls) -> Talk:
    talk = Talk(question)
    for kind, *arguments in calls:
        if kind == "search":
            talk.search(talk.keywords)
        elif kind == "read":
            talk.call("read_email", message_id=arguments[0])
        elif kind == "finish":
            talk.finish(*arguments)
        else:
            name, given_ = arguments
            function = {"name": name, "arguments": json.dumps(given_)}
            talk.messages.append({"role": "assistant", "tool_calls": [{"id": "raw", "function": function}]})
    return talk


def test_saying_that_there_is_no_answer_is_right_where_there_is_none_and_somebody_looked() -> None:
    (question,) = (question for question in make_inbox(0).questions if question.answer == UNKNOWN)
    last = ["finish", UNKNOWN, []]
    worth = [judged(played(question, calls)) for calls in ([["search"], last], [last])]
    assert [verdict.reward for verdict in worth] == pytest.approx([1.0, 0.0])
    assert [verdict.passed for verdict in worth] == [True, False]


MAILS = st.sampled_from([80, 21, 41, 1])
CALLS = st.lists(
    st.one_of(
        st.just(["search"]),
        st.tuples(st.just("read"), MAILS),
        st.tuples(st.just("finish"), st.sampled_from(["29", "17", UNKNOWN, ""]), st.lists(MAILS, max_size=3)),
        st.just(["raw", "read_email", {}]),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(CALLS)
def test_nothing_that_is_done_on_the_way_makes_a_worse_answer_worth_more(calls) -> None:
    verdict = judged(played(QUESTION, calls))
    (outcome,) = (name for name in WORTH if verdict.metrics[name])
    others = [worth for name, worth in WORTH.items() if worth > WORTH[outcome]]
    assert all(verdict.reward < worth - NEAR - MOST_BAD for worth in others)
    (first, *_) = [*(call for call in calls if call[0] == "finish"), None]
    assert (outcome == "nothing") is (first is None)


@each_row(
    ("kind", "text", "value"),
    [
        ("number", "29", "29"),
        ("number", "hall 1,493", "1493"),
        ("number", "29.5", None),
        ("number", "not 29", None),
        ("time", "8:05", "08:05"),
        ("time", "08:05 or 9:00", None),
        ("date", "5-3", "05-03"),
        ("date", "05-03.", "05-03"),
        ("date", "3", None),
        ("date", "05-03 or 05-04", None),
    ],
)
def test_answers_are_read_in_their_usual_spellings(kind, text, value) -> None:
    assert read_value(text, kind) == value


@AGENTSCOPE_2
async def test_the_tools_are_those_that_agentscope_offers_and_fit_the_shipped_model() -> None:
    from agentscope.tool import FunctionTool, Toolkit

    toolkit = Toolkit(tools=[FunctionTool(tool) for tool in Mailbox(make_inbox(0)).tools])
    assert await toolkit.get_tool_schemas() == [*TOOLS]


async def test_an_mcp_client_gets_the_same_from_the_server() -> None:
    stdio, session = pytest.importorskip("mcp.client.stdio"), pytest.importorskip("mcp")
    server = stdio.StdioServerParameters(command=sys.executable, args=[str(FOLDER / "mcp_server.py"), "0"])
    box = Mailbox(make_inbox(0))
    with open("/dev/null", "w") as nowhere:
        async with stdio.stdio_client(server, nowhere) as pipes, session.ClientSession(*pipes) as client:
            await client.initialize()
            offered = (await client.list_tools()).tools
            assert [(tool.name, tool.description) for tool in offered] == [
                (tool["function"]["name"], tool["function"]["description"]) for tool in TOOLS
            ]
            for name, arguments in (
                ("search_emails", {"keywords": "663"}),
                ("read_email", {"message_id": 41}),
                ("read_email", {"message_id": 1}),
                ("return_final_answer", {"answer": "29", "sources": [41]}),
            ):
                result = await client.call_tool(name, arguments)
                assert result.content[0].text == getattr(box, name)(**arguments)


def test_the_clerk_acts_at_inboxes_of_its_own_and_is_often_wrong() -> None:
    rows = list(islice(make_examples.conversations(), 300))
    assert rows == list(islice(make_examples.conversations(), 300))
    asked = [question.query for number in islice(SPLITS["warmup"], 60) for question in make_inbox(number).questions]
    assert all(row["messages"][1]["content"] == query for row, query in zip(rows, asked, strict=False))
    talks = [Talk(question) for number in SPLITS["validation"] for question in make_inbox(number).questions]
    for talk in talks:
        make_examples.hasty_clerk(talk, random.Random(talk.question.question_id))
    verdicts = [judged(talk) for talk in talks]
    assert 0.15 < fmean(verdict.passed for verdict in verdicts) < 0.45
    assert 0.55 < fmean(verdict.metrics["correct_tool"] for verdict in verdicts) < 0.85


@AGENTSCOPE_2
def test_the_page_shows_what_its_commands_print(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in ("solution", "careless"):
        script = f"scripted:tutorial/email_search/{name}.yaml"
        (command,) = (words for words in commands(FOLDER / "README.md") if script in words)
        located = [word.replace("scripted:tutorial/", f"scripted:{tutorial_dir()}/") for word in command]
        assert run(located) == 0
        (shown,) = (line for line in capsys.readouterr().out.splitlines() if "verdict " in line)
        assert shown.strip() in page
    (record,) = read_episodes(tmp_path / "runs" / "email_search" / "email_search-debug" / "episodes" / "debug.jsonl")
    said = [turn.response for turn in record.episode.turns]
    talk = Talk(QUESTION)
    oracle(talk, random.Random(0))
    mine = [message for message in talk.messages if message["role"] == "assistant"]
    assert [names(message) for message in said] == [names(message) for message in mine]
    assert len(record.episode.timelines) == 1


def names(message):
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return [(function["name"], json.loads(function["arguments"])) for function in called]


@AGENTSCOPE_2
async def test_an_example_has_the_tokens_of_an_episode_in_which_the_agent_says_it() -> None:
    chat_format = ChatFormat.load(tiny_model_dir())
    workflow = load_plugin(f"{FOLDER / 'workflow.py'}:InboxAgent", kind="workflow")
    questions = [question for number in islice(SPLITS["warmup"], 4) for question in make_inbox(number).questions]
    for question, row in zip(questions, make_examples.conversations(), strict=False):
        (example,) = conversation_rows(chat_format, row["messages"], row["tools"])
        said = [chat_format.decode(example.token_ids[span.start : span.stop - 1]) for span in example.spans]
        policy = ScriptedPolicy(said, chat_format)
        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=80), max_turns=8, seed=1)
        task = Task("t", question.query, metadata=task_row(question))
        tuner = Tuner(task, "t/0", tracker)
        try:
            await workflow().execute(task, tuner)
        finally:
            tuner.close()
        (episode,) = tracker.timelines()
        assert list(episode.token_ids) == list(example.token_ids) and episode.loss_mask == example.loss_mask
        assert len(example.token_ids) < 2048 / 2


def agentrl(capsys, *keys: str) -> str:
    (command,) = (words for words in commands(FOLDER / "README.md") if "tutorial/email_search/agentrl.yaml" in words)
    located = [word.replace("scripted:tutorial/", f"scripted:{tutorial_dir()}/") for word in command]
    code = run(located, *keys)
    return f"{code}: {capsys.readouterr().out}"


@AGENTSCOPE_2
def test_rows_of_agentrl_run_with_a_second_model_that_reads_where_the_first_fails(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    said = json.dumps({"rational": "one number", "evidence": "now 29 dollars", "report": "It is 29."})
    with ScriptedChatServer(lambda request: 500) as broken, ScriptedChatServer(lambda request: said) as reader:
        models = [{"base_url": one.base_url, "model": "any", "max_retries": 0} for one in (broken, reader)]
        (tmp_path / "browse.yaml").write_text(json.dumps({"models": models, "cache": None, "shortest": 1}))
        monkeypatch.setenv("BROWSE", str(tmp_path / "browse.yaml"))
        printed = agentrl(capsys)
    assert printed.startswith("0: ") and printed.count("Evidence: now 29 dollars\n") >= 3
    assert printed.count("verdict    reward 1") == 3
    assert broken.requests and all("Purpose: the cost" in str(request) for request in reader.requests)


@AGENTSCOPE_2
def test_where_no_model_can_read_the_attempt_does_not_count(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedChatServer(lambda request: 500) as broken:
        models = [{"base_url": broken.base_url, "model": "any", "max_retries": 0}]
        (tmp_path / "browse.yaml").write_text(json.dumps({"models": models, "cache": None, "shortest": 1}))
        monkeypatch.setenv("BROWSE", str(tmp_path / "browse.yaml"))
        printed = agentrl(capsys)
    assert "no model answers" in printed and printed.count("verdict    none: the episode was not judged") == 3


@AGENTSCOPE_2
@pytest.mark.slow
def test_the_commands_warm_a_model_up_and_train_it(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(make_examples, "__file__", str(tmp_path / "make_examples.py"))
    make_examples.main(40)
    warm_up, export, train, dpo = (
        next(words for words in commands(FOLDER / "README.md") if marks in words and "--backbone=debug" not in words)
        for marks in (
            "tutorial/email_search/warm_up.yaml",
            "export",
            "tutorial/email_search/email_search.yaml",
            "astune.algorithm.method=dpo",
        )
    )
    few = ("trainer.total_steps=1", "trainer.warmup_steps=0", "monitor.progress=plain")
    small = ("task_reader.max_validation_tasks=2", "evaluation.decoding=[greedy]", "evaluation.before=false")
    assert run(warm_up, f"trainer.examples={tmp_path}/examples.jsonl", "trainer.tasks_per_step=4", *few) == 0
    assert run(export) == 0
    assert run(train, "trainer.tasks_per_step=2", "rollout.num_repeat=2", *few, *small) in (0, 3)
    assert run(dpo, "trainer.tasks_per_step=1", *few, *small) in (0, 2, 3)
