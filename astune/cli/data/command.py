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


def add_data(commands: Commands) -> None:
    command = commands.add_parser("data", help="make tasks from a few, or from documents; every answer is checked")
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
