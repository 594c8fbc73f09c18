"""Two versions answer a request that came before: each answer is recorded in a conversation of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa

from astune.context_tracker.prompt.messages import meaning
from astune.errors import OnlineError
from astune.gateway.chat_completions import parse_chat_completion
from astune.online.service.callers import Caller
from astune.online.service.chat import ChatService, ServiceRequest
from astune.online.store import comparisons
from astune.online.store.aliases import resolve
from astune.online.store.recorded import RecordedAnswer, load_recorded
from astune.store.database import Database

MOST_TRIED = 5
"""Requests that are answered anew for one pair, where both versions say the same."""


class VersionSampler:
    """Answers requests of the store by versions that are named, whichever of them is served. `chat` records."""

    def __init__(self, chat: ChatService, database: Database) -> None:
        self._chat, self._database = chat, database

    async def sample(self, client: str, versions: tuple[int, int]) -> tuple[str, str] | None:
        """Sample two answers that differ, to the client's newest request that these versions have not answered; return
        their msg_ids, None if there is no such request. Raises HttpError where a version cannot be loaded, AstuneError
        where it does not answer."""
        for _ in range(MOST_TRIED):
            question, known = await asyncio.to_thread(self._choose, client, versions)
            if question is None:
                return None
            for number in versions:
                if number not in known:
                    known[number] = await self._answer(question, number)
            first, second = (known[number] for number in versions)
            if await asyncio.to_thread(self._database.read, partial(_differ, msg_ids=(first, second))):
                return first, second
        return None

    def _choose(self, client: str, versions: tuple[int, int]) -> tuple[RecordedAnswer | None, dict[int, str]]:
        """The request, and the answers that these versions gave to it already."""
        with self._database.reading() as connection:
            for msg_id in comparisons.find_newest(connection, client):
                known = comparisons.find_sampled(connection, msg_id)
                both = [known[number] for number in versions if number in known]
                is_done = len(both) == len(versions)
                if not is_done or (not comparisons.find_compared(connection, both) and _differ(connection, both)):
                    return load_recorded(connection, [msg_id])[msg_id], {
                        number: known[number] for number in versions if number in known
                    }
        return None, {}

    async def _answer(self, question: RecordedAnswer, number: int) -> str:
        """The msg_id of the answer."""
        asked = question.heading
        body = {"messages": list(question.messages), **({"tools": list(question.tools)} if question.tools else {})}
        whose = Caller(
            asked.client, asked.user, f"{asked.msg_id} v{number}", asked.task_id, f"{comparisons.COPIED}{asked.msg_id}"
        )
        request = ServiceRequest(parse_chat_completion(body), whose, f"v{number}", "chatcmpl-", version=number)
        answers, _ = await self._chat.answer(request)
        return f"chatcmpl-{answers[0].answer_id}"


def _differ(connection: sa.Connection, msg_ids: Sequence[str]) -> bool:
    answers = load_recorded(connection, msg_ids).values()
    said = [meaning([{"role": "assistant", **answer.turns[0][1].response}], 0) for answer in answers]
    return len(said) == len(set(said))


def read_versions(connection: sa.Connection, text: str) -> tuple[int, int]:
    """Read two versions as `v7,v9`, by number, alias or name. Raises AstuneError for others."""
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2:
        raise OnlineError(f"versions={text!r:.100}: expected two, as v7,v9")
    one, other = (resolve(connection, name).number for name in names)
    if one == other:
        raise OnlineError(f"versions={text!r:.100}: both are v{one}")
    return one, other
