"""The ids of the replies that an AgentScope agent's model gave, which feedback names. The id of an agent's message is
AgentScope's own and unknown to the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import openai

from astune.errors import OnlineError
from astune.online.agent.shadow import ANSWERS, ids_in

_IDS: ContextVar[list[str] | None] = ContextVar("astune_message_ids", default=None)


@contextmanager
def collect_message_ids(*agents: Any) -> Iterator[list[str]]:
    """The ids of all replies that the models of these agents give to the code within, in their order.

        with collect_message_ids(agent) as msg_ids:
            answer = await agent.reply(UserMsg("ana", "One tea, please."))
        await client.feedback(msg_ids=msg_ids, thumb="up", user="ana")

    An agent or a model may answer several people at once: each list has what was asked within. Raises OnlineError for
    an agent whose model is none of OpenAI's API.
    """
    for agent in agents:
        client = vars(agent.model).get("client")
        if not isinstance(client, openai.AsyncOpenAI):
            raise OnlineError(
                f"the model of {agent.name!r} ({type(agent.model).__name__}) does not speak OpenAI's API: the service "
                "knows none of its replies"
            )
        hooks = client._client.event_hooks
        if _look not in hooks["response"]:
            client._client.event_hooks = hooks | {"response": [*hooks["response"], _look]}
    ids: list[str] = []
    token = _IDS.set(ids)
    try:
        yield ids
    finally:
        _IDS.reset(token)


async def _look(response: Any) -> None:
    ids = _IDS.get()
    if ids is not None and response.request.url.path.endswith(ANSWERS) and response.is_success:
        await response.aread()  # the service sends a stream when the whole answer is there
        ids += [found for found in dict.fromkeys(ids_in(response.text)) if found not in ids]
