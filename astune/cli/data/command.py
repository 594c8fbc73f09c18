"""The options of `astune data`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from astune.cli.suggesting_parser import Commands, add_overrides

MODELS = """
ten.jsonl       {{"query": "Of 20 lamps 6 are broken. How many burn?", "answer": "14"}}
models.yaml
  astune:
    task_reader:
      augment:
        models: [{{base_url: https://api.openai.com/v1, model: gpt-4.1-mini, api_key_env: OPENAI_API_KEY,
                  prompt_price: 0.4, completion_price: 1.6}}]
        max_cost: 2.0
        checks: [code, agree]"""
EXPAND_EXAMPLES = f"""\
  {{program}} data expand --conf models.yaml --seeds ten.jsonl --target 200 --dry-run
  {{program}} data expand --conf models.yaml --seeds ten.jsonl --held-out test.jsonl --target 200 --out more.jsonl
  {{program}} data expand --conf my_agent.yaml --target 200 astune.task_reader.augment.writer=none
  {{program}} --conf my_agent.yaml astune.task_reader.augment.file=more.jsonl     train on both
{MODELS}"""
DOCUMENTS_EXAMPLES = f"""\
  {{program}} data from-documents manuals/ --conf models.yaml --target 200 --dry-run
  {{program}} data from-documents manuals/ --conf models.yaml --target 200 --out asked.jsonl
  {{program}} data from-documents report.pdf --conf models.yaml --target 20 astune.task_reader.augment.chunk_words=120
{MODELS}"""
TRACES_EXAMPLES = """\
  {program} data from-traces chats.jsonl.gz --conf my_agent.yaml --out traced.jsonl
  {program} data from-traces spans/ --dry-run
  {program} data from-traces sqlite:///agentscope.db --consent user.agreed
  {program} data from-traces online.sqlite                 the store of ASTune's online service
  {program} sft.yaml astune.trainer.examples=traced.examples.jsonl

chats.jsonl     {{"messages": [{{"role": "user", "content": "2+2?"}},
                              {{"role": "assistant", "content": "5", "thumb": "down", "correction": "4"}}]}}
                {{"conversations": [{{"from": "human", "value": "Hi"}}, {{"from": "gpt", "value": "Hello"}}],
                 "rating": 5, "consent": true}}"""
GOES_ON = """
The models of astune.task_reader.augment write and check: chat APIs, of which the next is asked where one
fails, or `writer`: none (the configured model, loaded here) or a checkpoint. `checks` says what may prove an
answer, the next where one cannot tell: code (a program in the sandbox), agree (independent solutions), agent
(yours plays on the model `agent`). `policy` names the model to train: what it solves always or never goes;
`quality` a rubric that all must pass. What is dropped is listed beside the file with its reason. The same
command goes on where one was stopped. Exits with 1 if fewer tasks came."""
EXPAND = f"""\
Varies the training tasks: numbers, names, wording, difficulty, and new ones of their kind. Only what has a
proved answer is kept; copies, and what is close to a held-out task, are not.{GOES_ON}"""
DOCUMENTS = f"""\
Asks about PDF, HTML, Word, PowerPoint, Markdown and text (pip install 'astune[documents]'): one fact, two
passages together, a number computed from two, and what is not in them. The evidence stands in the document
word for word, readers of it agree on the answer, and who has not read it does not know. asked.jsonl is to
train on, asked.held_out.jsonl is about documents that nothing else is made from.{GOES_ON}"""
TRACES = """\
Makes of conversations with users traced.jsonl: tasks, with a reference where users corrected or liked an
answer, else for a rubric; .pairs.jsonl for dpo, .examples.jsonl for sft, .rewards.jsonl for kto, and
.dropped.jsonl: what was not taken, and why. Thumbs, ratings and corrections count; where there are none, what
the user did next: asked again, complained, thanked, left. Reads chat logs, OTLP JSON as a collector writes
it, AgentScope's agent service and the store of ASTune's online service. Personal data is masked before
anything is written; the report says what is not found. Conversations whose user refused are left out. Asks
no model, unless astune.online.feedback.follow.judge says so."""


HELD_OUT: dict[str, Any] = {
    "type": Path,
    "action": "append",
    "default": [],
    "metavar": "FILE",
    "help": "further tasks that none may be close to; may be given again",
}


def add_data(commands: Commands) -> None:
    command = commands.add_parser("data", help="make tasks from a few, from documents, or from what users did")
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    expand = actions.add_parser(
        "expand",
        help="more tasks like the training tasks",
        description=EXPAND,
        examples=EXPAND_EXAMPLES,
    )
    expand.add_argument("--seeds", type=Path, metavar="FILE", help="the tasks to vary, in the place of the configured")
    _add_common(expand, "more_tasks.jsonl")
    documents = actions.add_parser(
        "from-documents",
        help="questions about documents",
        description=DOCUMENTS,
        examples=DOCUMENTS_EXAMPLES,
    )
    documents.add_argument("documents", type=Path, metavar="DOCUMENTS", help="a file, or a folder of files")
    _add_common(documents, "asked.jsonl")
    _add_traces(actions)


def _add_traces(actions: Commands) -> None:
    traces = actions.add_parser(
        "from-traces",
        help="what users did: ratings, corrections, what they said next",
        description=TRACES,
        examples=TRACES_EXAMPLES,
    )
    traces.set_defaults(execute=_execute_traces)
    traces.add_argument("source", metavar="SOURCE", help="a file, a folder, or the address of a database")
    traces.add_argument("--conf", type=Path, metavar="X.yaml", help="the configuration with the tasks that are there")
    traces.add_argument("--held-out", **HELD_OUT)
    traces.add_argument("--out", type=Path, default=Path("traced.jsonl"), metavar="FILE", help="default: traced.jsonl")
    traces.add_argument(
        "--unrated", action="store_true", help="questions of which nothing tells how the answer was, too"
    )
    traces.add_argument("--consent", metavar="KEY", help="take only conversations whose flag of this name says yes")
    traces.add_argument("--ratings", metavar="LOW:HIGH", help="the scale of ratings; default: 1:5, of spans 0:1")
    traces.add_argument(
        "--evaluation",
        action="append",
        default=[],
        metavar="NAME",
        help="a gen_ai.evaluation.name that counts; may be given again; default: those that name users",
    )
    traces.add_argument("--dry-run", action="store_true", help="show what would come, and write nothing")
    add_overrides(traces)


def _add_common(command: argparse.ArgumentParser, out: str) -> None:
    command.set_defaults(execute=_execute)
    command.add_argument("--conf", type=Path, metavar="X.yaml", help="the configuration")
    command.add_argument("--target", type=int, metavar="N", help="tasks to make")
    command.add_argument("--held-out", **HELD_OUT)
    command.add_argument("--out", type=Path, default=Path(out), metavar="FILE", help=f"to write; default: {out}")
    command.add_argument("--dry-run", action="store_true", help="say how many calls it takes and what they cost")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    from astune.cli.data.make import make

    return make(known)


def _execute_traces(known: argparse.Namespace) -> int:
    from astune.cli.data.make import make_of_traces

    return make_of_traces(known)
