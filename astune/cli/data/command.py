"""The options of `astune data`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.suggesting_parser import add_overrides

if TYPE_CHECKING:
    from astune.cli.suggesting_parser import Commands

MODELS = """
The models that write and check stand in the configuration; the next is asked where one fails:
  astune:
    task_reader:
      augment:
        models: [{{base_url: https://api.openai.com/v1, model: gpt-4.1-mini, api_key_env: OPENAI_API_KEY,
                  prompt_price: 0.4, completion_price: 1.6}}]
        max_cost: 2.0"""
GOES_ON = "\nThe same command goes on where one was stopped. Exits with 1 if fewer tasks came."
EXPAND_EXAMPLES = f"""\
  {{program}} data expand --conf my_agent.yaml --target 200 --dry-run      how many calls, and what they cost
  {{program}} data expand --conf my_agent.yaml --target 200 --out more.jsonl
  {{program}} data expand --conf models.yaml --seeds ten.jsonl --held-out test.jsonl --target 200
  {{program}} --conf my_agent.yaml astune.task_reader.augment.file=more.jsonl     train on both
{MODELS}"""
DOCUMENTS_EXAMPLES = f"""\
  {{program}} data from-documents manuals/ --conf models.yaml --target 200 --dry-run
  {{program}} data from-documents manuals/ --conf models.yaml --target 200 --out asked.jsonl
  {{program}} data from-documents report.pdf --conf models.yaml --target 20 astune.task_reader.augment.chunk_words=120

asked.jsonl is to train on, asked.held_out.jsonl asks about documents that nothing else was made from.
Reading PDF, Word, PowerPoint and HTML needs pip install 'astune[documents]'.
{MODELS}"""
TRACES_EXAMPLES = """\
  {program} data from-traces spans/ --out traced.jsonl            OTLP JSON, as a collector's file exporter writes it
  {program} data from-traces chats.jsonl --conf my_agent.yaml     nothing close to its held-out tasks
  {program} data from-traces sqlite:///agentscope.db              AgentScope's agent service: sessions and messages
  {program} data from-traces online.sqlite --dry-run              the store of ASTune's online service
  {program} data from-traces chats.jsonl --consent user.agreed --ratings 1:10
  {program} sft.yaml astune.trainer.examples=traced.examples.jsonl          with astune.algorithm.method sft

traced.jsonl            tasks; with a reference where users corrected or liked an answer, else for a rubric
traced.pairs.jsonl      a better and a worse answer: dpo      traced.examples.jsonl   answers to imitate: sft
traced.rewards.jsonl    answers, good or bad: kto             traced.dropped.jsonl    what was not taken, and why"""


def add_data(commands: Commands) -> None:
    command = commands.add_parser("data", help="make tasks from a few, from documents, or from what users did")
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    expand = actions.add_parser(
        "expand",
        help="more tasks like the training tasks",
        description="Varies the training tasks. Each new answer is computed by a program in a sandbox, or independent\n"
        "solutions agree on it, or the agent plays and its judge says that it is right; what cannot be checked,\n"
        "copies, and what is close to a held-out task are dropped and listed beside the file." + GOES_ON,
        examples=EXPAND_EXAMPLES,
    )
    expand.add_argument("--seeds", type=Path, metavar="FILE", help="the tasks to vary, in the place of the configured")
    _add_common(expand, "more_tasks.jsonl")
    documents = actions.add_parser(
        "from-documents",
        help="questions about documents",
        description="Asks about PDF, HTML, Word, PowerPoint, Markdown and text: one fact, two passages together, a\n"
        "number computed from two, and what is not in them. The evidence stands in the document word for word,\n"
        "readers of it agree on the answer, and who has not read it does not know; else the question is\n"
        "dropped and listed." + GOES_ON,
        examples=DOCUMENTS_EXAMPLES,
    )
    documents.add_argument("documents", type=Path, metavar="DOCUMENTS", help="a file, or a folder of files")
    _add_common(documents, "asked.jsonl")
    _add_traces(actions)


def _add_traces(actions: Commands) -> None:
    traces = actions.add_parser(
        "from-traces",
        help="what users did: ratings, corrections, what they said next",
        description="Makes tasks, pairs, examples and rewards of conversations with users. Thumbs, ratings and\n"
        "corrections count; where there are none, what the user did next: asked again, complained, thanked,\n"
        "left. Mail addresses, phones, cards, keys and the like are masked before anything is written; the\n"
        "report says what is not found. Conversations whose user refused are left out. Asks no model, unless\n"
        "astune.online.feedback.follow.judge says so.",
        examples=TRACES_EXAMPLES,
    )
    traces.set_defaults(execute=_execute_traces)
    traces.add_argument("source", metavar="SOURCE", help="a file, a folder, or the address of a database")
    traces.add_argument("--conf", type=Path, metavar="X.yaml", help="the configuration with the tasks that are there")
    traces.add_argument("--held-out", type=Path, metavar="FILE", help="further tasks that none may be close to")
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
    command.add_argument("--held-out", type=Path, metavar="FILE", help="further tasks that none may be close to")
    command.add_argument("--out", type=Path, default=Path(out), metavar="FILE", help=f"to write; default: {out}")
    command.add_argument("--dry-run", action="store_true", help="say how many calls it takes and what they cost")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    from astune.cli.data.make import make

    return make(known)


def _execute_traces(known: argparse.Namespace) -> int:
    from astune.cli.data.make import make_of_traces

    return make_of_traces(known)
