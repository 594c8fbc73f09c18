"""Examples that warm a model up: `python tutorial/email_search/make_examples.py` writes `examples.jsonl`, the same each
time.

A hasty clerk answers questions about inboxes that nobody trains or tests on. It knows how each tool is called and how a
mail is read, and does in every place what it should not, by chance: it looks for too little, opens any mail, gives up
at the first that says nothing, guesses, forgets its sources, or forgets to answer. So the model learns to act, and as
often as the clerk to act wrongly: what is better is left to rewards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from inbox_players import CLOSING, TOOLS, Talk, inventor, stated
from inboxes import SPLITS, UNKNOWN, make_inbox

COUNT = 9600
SEARCHES, RIGHT_WORDS, OPENS, NEWEST, GOES_ON, BELIEVES, CITES, ANSWERS = 0.65, 0.9, 0.7, 0.8, 0.85, 0.95, 0.7, 0.65
"""How often the clerk does what it should, where it can."""
GUESSES = 0.2
"""How often it makes an answer up where it has read nothing; else it says that it does not know."""


def conversations() -> Iterator[dict[str, Any]]:
    for number in SPLITS["warmup"]:
        for question in make_inbox(number).questions:
            talk = Talk(question)
            hasty_clerk(talk, random.Random(f"clerk {question.question_id}"))
            yield {"messages": talk.messages, "tools": [*TOOLS]}


def hasty_clerk(talk: Talk, rng: random.Random) -> None:
    if rng.random() > SEARCHES:
        return guess(talk, rng)
    shown = talk.search(talk.keywords if rng.random() < RIGHT_WORDS else rng.choice(talk.keywords.split()))
    if not shown:
        return conclude(talk, rng, UNKNOWN, [])
    if rng.random() > OPENS:
        return guess(talk, rng)
    while shown:
        mail = shown.pop(0 if rng.random() < NEWEST else rng.randrange(len(shown)))
        value = stated(talk.call("read_email", message_id=mail), talk.question)
        if value is not None and rng.random() < BELIEVES:
            return conclude(talk, rng, value, [mail])
        if rng.random() > GOES_ON:
            break
    return conclude(talk, rng, UNKNOWN, [])


def guess(talk: Talk, rng: random.Random) -> None:
    if rng.random() < GUESSES:
        inventor(talk, rng)
    else:
        talk.finish(UNKNOWN, [])


def conclude(talk: Talk, rng: random.Random, answer: str, sources: list[int]) -> None:
    if rng.random() > ANSWERS:
        talk.messages.append({"role": "assistant", "content": CLOSING})
    else:
        talk.finish(answer, sources if rng.random() < CITES else [])


def main(count: int = COUNT) -> None:
    path = Path(__file__).with_name("examples.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in islice(conversations(), count)), encoding="utf-8")
    print(f"wrote {count} conversations to {path}")


if __name__ == "__main__":
    main()
