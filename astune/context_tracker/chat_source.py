"""A source that is a chat API, and what is known of the tokens of its answers.

    the API gives                          the turn's ids                       exact   excluded
    ids of the prompt and of the answer,   those                                yes     -
    and log-probabilities
    such ids, no log-probabilities         those                                yes     no_logprobs
    text only                              made from text                       no      inexact; with `allow_inexact`
                                                                                        no_logprobs, or - (see below)
    anything, of a model never trained     made from text                       no      frozen

Only a model that is said to be the policy served elsewhere (`trainable: true`) is asked for ids, as vLLM takes it
(`return_token_ids`), and can be trained. Ids whose text is not the answer's are of another vocabulary and count as
none. Ids made from text are for people to look at: the prompt as our template and tokenizer write it, and what the
template writes for the answer, up to and with the token that closes it. They are trained only with `allow_inexact`,
and only if the API gave the log-probabilities of tokens that are ours one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astune.config.chat_models import AuxiliaryModelConfig
from astune.context_tracker.calls import Answer, Call, ChatRequest, is_unread
from astune.context_tracker.prompt.builder import Prompt
from astune.context_tracker.prompt.encoding import LONG_TEXT
from astune.context_tracker.write_answer import write_after
from astune.errors import WorkflowError
from astune.token_ids import TokenIds
from astune.types import Sampling

if TYPE_CHECKING:
    from astune.clients.chat import ChatClient, ChatReply

INEXACT = "inexact"
NO_LOGPROBS = "no_logprobs"
FORCED = "forced"
"""The engine held the model to a call or to JSON: its tokens are not the policy's own choice."""
_MOST_SEED = 2**31
"""Seeds below this are taken everywhere."""


class ChatSource:
    """A chat API as a source of answers. Policy versions are not known: its turns say 0."""

    def __init__(self, client: ChatClient, *, allow_inexact: bool) -> None:
        self._client = client
        self._allow_inexact = allow_inexact
        self.is_policy = isinstance(client.config, AuxiliaryModelConfig) and client.config.trainable

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        reply = await self._client.complete(self._body(call.request, call.prompt, sampling))
        given = self._read_given_ids(reply, call)
        if given is not None:
            return given
        if len(reply.message["content"] or "") > LONG_TEXT:
            return await asyncio.to_thread(self._make_from_text, reply, call)
        return self._make_from_text(reply, call)

    def _body(self, request: ChatRequest, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        """Write the request in OpenAI's shape. A policy that is served elsewhere gets the run's sampling and the
        reasoning that the agent dropped, like the policy here; another model gets only what the agent asked for."""
        if request.prompt is not None:
            raise WorkflowError(f"a raw prompt was sent to {self._client.name!r}, which has a chat API only")
        body: dict[str, Any] = {"messages": list(request.messages)}
        limit = self._client.config.limit_field
        if self.is_policy:
            messages = body["messages"] if prompt.match is None else prompt.match.messages
            body = {"messages": messages, "logprobs": True, "return_token_ids": True, "top_k": sampling.top_k or -1}
            body |= {limit: sampling.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p}
        asked = {limit: request.max_tokens, "temperature": request.temperature, "top_p": request.top_p}
        body |= {name: value for name, value in asked.items() if value is not None and name not in body}
        if sampling.seed is not None and (self.is_policy or request.seed is not None):
            body["seed"] = sampling.seed % _MOST_SEED
        if request.stop:
            body["stop"] = list(request.stop)
        if request.tools:
            body["tools"] = list(request.tools)
        return body | _force_fields(request)

    def _read_given_ids(self, reply: ChatReply, call: Call) -> Answer | None:
        """Read the answer from the tokens that the API gave; None if it gave none of our vocabulary."""
        request, prompt, chat_format = call.request, call.prompt, call.chat_format
        if not self.is_policy or reply.prompt_ids is None or reply.output_ids is None:
            return None
        if any(chat_format.foreign_id(ids) is not None for ids in (reply.prompt_ids, reply.output_ids)):
            return None
        if (reply.message["content"] or "").strip() not in chat_format.decode(reply.output_ids):
            return None
        # The server's template may drop what ours writes: what it trains on must say what the agent sent.
        chat_format.check_said(chat_format.decode(reply.prompt_ids), request.messages, request.tools)
        known = reply.logprobs is not None and len(reply.logprobs) == len(reply.output_ids)
        return Answer(
            message=reply.message,
            prompt_ids=prompt.ids if prompt.ids == reply.prompt_ids else TokenIds(reply.prompt_ids),
            output_ids=reply.output_ids,
            logprobs=_values(reply, len(reply.output_ids), known),
            policy_version=0,
            finish_reason=reply.finish_reason,
            excluded=FORCED if request.force is not None else None if known else NO_LOGPROBS,
            unread=is_unread(chat_format, request, reply.message),
            usage=reply.usage,
        )

    def _make_from_text(self, reply: ChatReply, call: Call) -> Answer:
        """Make the answer's tokens from its text."""
        request, chat_format = call.request, call.chat_format
        ids = chat_format.encode(_write_text(reply, call))
        known = reply.logprobs is not None and [chat_format.decode([token]) for token in ids] == [
            text for text, _ in reply.logprobs
        ]
        allowed = self.is_policy and self._allow_inexact
        return Answer(
            message=reply.message,
            prompt_ids=call.prompt.ids,
            output_ids=ids,
            logprobs=_values(reply, len(ids), known),
            policy_version=0,
            finish_reason=reply.finish_reason,
            exact=False,
            excluded=INEXACT if not allowed else FORCED if request.force else None if known else NO_LOGPROBS,
            unread=self.is_policy and is_unread(chat_format, request, reply.message),
            usage=reply.usage,
        )


def _write_text(reply: ChatReply, call: Call) -> str:
    """Write the answer as the template does. If the template does not write it after the prompt, as one that opens
    reasoning there, the text is the answer's content."""
    close = "" if reply.finish_reason == "length" else call.chat_format.close_token or ""
    plain = (reply.message["content"] or "") + close
    text = write_after(call.chat_format, call.prompt, reply.message, call.request.tools)
    return plain if text is None else text + close


def _force_fields(request: ChatRequest) -> dict[str, Any]:
    if request.force == "json_object":
        return {"response_format": {"type": "json_object"}}
    if request.force == "tool_call":
        named = {"type": "function", "function": {"name": request.force_tool}}
        return {"tool_choice": "required" if request.force_tool is None else named}
    return {} if request.may_call or not request.tools else {"tool_choice": "none"}


def _values(reply: ChatReply, count: int, known: bool) -> Sequence[float]:
    """The log-probabilities, 0.0 where they are not known."""
    return [value for _, value in reply.logprobs] if known and reply.logprobs is not None else [0.0] * count


def write_for_people(messages: Sequence[Mapping[str, Any]]) -> str:
    """Write a conversation that our template refuses, for people to read."""
    return "".join(f"[{message.get('role')}]\n{message.get('content') or ''}\n" for message in messages)
