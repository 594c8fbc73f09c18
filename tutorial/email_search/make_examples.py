"""Examples that warm a model up: `python tutorial/email_search/make_examples.py` writes `examples.jsonl`, the same each
time.

A hasty clerk answers questions about inboxes that nobody trains or tests on. It knows how each tool is called and how a
mail is read, and does in every place what it should not, by chance: it does not search, opens the oldest mail or any,
does not go on to the mail that this one replies to, forgets its sources, or forgets to answer. Every third example only
says numbers again. So the model learns to act, and as often as the clerk to act wrongly: what is better is left to
rewards.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from inbox_players import CLOSING, SYSTEM, TOOLS, Talk, stated
from inboxes import SPLITS, TOPICS, UNKNOWN, make_inbox

COUNT = 8_000
"""Of exercises; twice as many talks of the clerk."""
SEARCHES, OPENS, NEWEST, OLDEST, GOES_ON, CITES, ANSWERS = 0.8, 0.8, 0.4, 0.4, 0.8, 0.7, 0.8
"""How often the clerk does what it should, where it can; and how often it opens the oldest mail instead."""


def conversations() -> Iterator[dict[str, Any]]:
    for number in SPLITS["warmup"]:
        for question in make_inbox(number).questions:
            talk = Talk(question)
            hasty_clerk(talk, random.Random(f"clerk {question.question_id}"))
            yield {"messages": talk.messages, "tools": [*TOOLS]}


def exercises() -> Iterator[dict[str, Any]]:
    """Conversations in which the agent says again numbers that it was told: a model learns from it to copy them."""
    rng = random.Random("exercises")
    while True:
        told = [rng.choice(TOPICS).draw(rng) if rng.random() < 0.7 else str(rng.randrange(100, 1000)) for _ in range(6)]
        text = " ".join(told[: rng.randrange(1, 7)])
        messages = [
            {"role": "system", "content": SYSTEM},
            *({"role": r, "content": text} for r in ("user", "assistant")),
        ]
        yield {"messages": messages, "tools": [*TOOLS]}


def hasty_clerk(talk: Talk, rng: random.Random) -> None:
    if rng.random() > SEARCHES:
        return talk.finish(UNKNOWN, [])
    shown = talk.search(talk.keywords)
    if not shown or rng.random() > OPENS:
        return conclude(talk, rng, UNKNOWN, [])
    draw = rng.random()
    mail = shown[0 if draw < NEWEST else -1 if draw < NEWEST + OLDEST else rng.randrange(len(shown))]
    while True:
        text = talk.call("read_email", message_id=mail)
        if (value := stated(text, talk.question)) is not None:
            return conclude(talk, rng, value, [mail])
        older = re.search(r"Re: (\d+)$", text)
        if older is None or rng.random() > GOES_ON:
            return conclude(talk, rng, UNKNOWN, [])
        mail = int(older[1])


def conclude(talk: Talk, rng: random.Random, answer: str, sources: list[int]) -> None:
    if rng.random() > ANSWERS:
        talk.messages.append({"role": "assistant", "content": CLOSING})
    else:
        talk.finish(answer, sources if rng.random() < CITES else [])


def main(count: int = COUNT) -> None:
    path = Path(__file__).with_name("examples.jsonl")
    talks = conversations()
    threes = islice(zip(talks, talks, exercises(), strict=False), count)
    rows = [row for three in threes for row in three]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {len(rows)} conversations to {path}")


if __name__ == "__main__":
    main()
