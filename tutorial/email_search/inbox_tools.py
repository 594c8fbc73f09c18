"""The three tools of an inbox, as plain functions; `mcp_server.py` serves them over MCP.

    >>> box = Mailbox(make_inbox(1000))
    >>> box.read_email(1)
    'Error: no mail has the id 1.'

Each episode has a `Mailbox` of its own. Mails lie in SQLite with its full-text search FTS5, in memory.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import lru_cache

from inboxes import Inbox, make_inbox

MOST_RESULTS = 5


class Mailbox:
    """The tools of one episode. `answer` and `sources` are what it gave as its final answer, None before it did."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.answer: str | None = None
        self.sources: tuple[int, ...] = ()

    @property
    def tools(self) -> tuple[Callable[..., str], ...]:
        return self.search_emails, self.read_email, self.return_final_answer

    def search_emails(self, keywords: str) -> str:
        """Find mails, new ones first."""
        found = find(self.inbox.number, keywords)
        if not found:
            return "No mail has all of these words."
        return "\n".join(f"{mail} {sender}" for mail, _, sender, _ in found)

    def read_email(self, message_id: int) -> str:
        """Read a mail."""
        mail = next((mail for mail in self.inbox.mails if mail.message_id == message_id), None)
        if mail is None:
            return f"Error: no mail has the id {message_id}."
        return mail.body if mail.reply_to is None else f"{mail.body} Re: {mail.reply_to}"

    def return_final_answer(self, answer: str, sources: list[int]) -> str:
        """Answer, with the ids of the mails that prove it."""
        if self.answer is not None:
            return "Error: the answer was given before."
        self.answer, self.sources = answer, tuple(sources)
        return "Noted."


def find(number: int, keywords: str) -> list[tuple[int, str, str, str]]:
    """Id, date, sender and subject of the newest mails that have all words; no words find nothing."""
    words = re.findall(r"\w+", keywords)
    if not words:
        return []
    query = " ".join(f'"{word}"' for word in words)
    return (
        index(number)
        .execute(
            "SELECT rowid, date, sender, subject FROM mails WHERE mails MATCH ? ORDER BY date DESC, rowid LIMIT ?",
            (query, MOST_RESULTS),
        )
        .fetchall()
    )


@lru_cache(maxsize=512)
def index(number: int) -> sqlite3.Connection:
    """The inbox as a table, in memory. Nobody writes to it afterwards, so episodes share it."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("CREATE VIRTUAL TABLE mails USING fts5(date UNINDEXED, sender, subject, body, tokenize=porter)")
    database.executemany(
        "INSERT INTO mails (rowid, date, sender, subject, body) VALUES (?, ?, ?, ?, ?)",
        [(mail.message_id, mail.date, mail.sender, mail.subject, mail.body) for mail in make_inbox(number).mails],
    )
    return database
