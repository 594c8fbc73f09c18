"""A conversation as the tokens that an engine and the model would have exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astune.context_tracker.calls import Call, ChatRequest
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.write_answer import answer_ids
from astune.types import Timeline, Turn

AGENT = "assistant"


def is_learned(message: Mapping[str, Any]) -> bool:
    """Tell whether it is an answer that carries loss."""
    return message["role"] == "assistant" and message.get("weight") != 0


def conversation_rows(
    chat_format: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    start: int = 0,
) -> tuple[Timeline, ...]:
    """The rows of a conversation in which the model said every assistant message from number `start` on. One with
    `weight` 0 is history, as in OpenAI's files for fine-tuning.

        conversation_rows(chat_format, [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])
        # one row: <|im_start|>user 2+2?<|im_end|> <|im_start|>assistant 4<|im_end|>, with loss on 4<|im_end|>

    Invariant: the tokens before an answer are the prompt that an engine would be sent for it. Raises `WorkflowError`
    for what the chat template cannot write.
    """
    learned = [index for index in range(start, len(messages)) if is_learned(messages[index])]
    messages = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
    prompts, forest = PromptBuilder(chat_format), TurnForest()
    for index in learned:
        history = messages[:index]
        prompt = prompts.build(AGENT, history, tools)
        call = Call(AGENT, ChatRequest(history, tools), prompt, len(forest.turns), True, None, chat_format)
        ids = answer_ids(chat_format, call, messages[index])
        prompts.record(AGENT, prompt, ids, messages[index])
        forest.add(Turn(AGENT, prompt.ids, ids, [0.0] * len(ids), policy_version=0, finish_reason="stop"))
    return forest.timelines()
