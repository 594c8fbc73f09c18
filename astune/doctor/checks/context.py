"""Does the longest prompt leave room for an answer?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, fail, ok, warn
from astune.types import Task

MOST_LOOKED_AT = 500
"""Tasks whose prompts are counted in tokens: those with the longest texts."""
LENGTH = "astune.model.max_model_len"


def check_context(checked: CheckedConfig) -> Iterator[Finding]:
    config, chat_format = checked.config, checked.chat_format
    made_for, wanted = chat_format.context_length, config.model.max_model_len
    if made_for is not None and wanted is not None and wanted > made_for:
        yield fail(
            f"{wanted} tokens are asked for, and the model was made for {made_for}",
            where=checked.where(LENGTH),
            fix=f"set it to {made_for} or fewer",
        )
        return
    context = wanted or made_for
    if context is None:
        yield warn(
            "the model's config.json does not say how many tokens it was made for (max_position_embeddings)",
            where=checked.where(LENGTH),
            fix="set it to what the model's documentation says",
        )
        return
    longest, prompt, looked_at = longest_prompt(checked)
    most = config.rollout.max_tokens
    said = f"the longest first prompt has {prompt} tokens ({checked.place(longest)}; {looked_at})"
    if prompt >= context:
        yield fail(
            f"{said}, the context {context}: no room for an answer",
            where=checked.place(longest),
            fix="take such tasks out, shorten the system prompt, or raise max_model_len as far as the model goes",
        )
    elif prompt + most > context:
        yield warn(
            f"{said}; with {most} tokens of answer (astune.rollout.max_tokens) it does not fit the context of "
            f"{context}: its first answer is cut at {context - prompt}",
            where=checked.place(longest),
            fix=f"set max_tokens to {context - prompt} or fewer, take such tasks out, or raise max_model_len",
        )
    else:
        turns = 1 + (context - prompt - most) // most
        yield ok(
            f"{said}; after it the context of {context} has room for {turns} answers of {most} tokens, what tools say "
            "not counted"
        )


def longest_prompt(checked: CheckedConfig) -> tuple[Task, int, str]:
    """The task with the longest first prompt, its tokens, and how many were looked at.

    The prompt is the first one of the dry run with the question exchanged; without a dry run, the question alone.
    """
    tasks = list(chain.from_iterable(checked.tasks.values()))
    chosen = sorted(tasks, key=lambda task: len(_text(task)), reverse=True)[:MOST_LOOKED_AT]
    looked_at = f"all {len(tasks)} tasks" if len(chosen) == len(tasks) else f"the {len(chosen)} longest of {len(tasks)}"
    around = _around(checked)
    counted = [(around + len(checked.chat_format.encode(_text(task))), number) for number, task in enumerate(chosen)]
    tokens, number = max(counted, key=lambda pair: (pair[0], -pair[1]))
    return chosen[number], tokens, looked_at


def _text(task: Task) -> str:
    said: Sequence[str] = [str(message.get("content") or "") for message in task.messages]
    return "\n".join(said) if said else task.query


def _around(checked: CheckedConfig) -> int:
    """Tokens of a first prompt beside the question: system prompt, tools, the template's own."""
    chat_format: ChatFormat = checked.chat_format
    turns = () if checked.played is None else checked.played.turns
    if not turns:
        return len(chat_format.encode(chat_format.render([{"role": "user", "content": ""}])))
    first = min(turns, key=lambda turn: turn.call)
    return max(len(first.prompt_ids) - len(chat_format.encode(_text(checked.first_task()))), 0)
