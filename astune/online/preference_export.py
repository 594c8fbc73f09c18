"""Exports pairs of answers to one request, of which one is better: one record, in the formats of several trainers.

    record     {"id", "task_id", "messages", "tools", "chosen", "rejected", "margin", "source", "model_versions",
               "judge_version", "raters", "agreement"}
    dpo, kto   what `astune.trainer.examples` reads with these methods
    trl        {"prompt", "chosen", "rejected", "tools"} as messages, for TRL's DPOTrainer
    trinity    {"messages", "chosen", "rejected"} as messages, for Trinity's DPO, which takes no tools

`source` is human (votes of raters and users: `margin` is by how much of all votes the chosen one leads, `agreement` the
share of the votes that are for it), judge (what a judge chose, where no person did), or reward (attempts at a task:
`margin` is the difference of the rewards).

Invariant: both answers are to the same messages and tools, and mean something else; no pair stands there twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, get_args

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.context_tracker.prompt.messages import meaning
from astune.online.export import VALID, ExportFilter, LoadedAnswers, Row
from astune.online.store import comparisons
from astune.online.store.feedback.judgements import judgements, preferences
from astune.online.store.recorded import RecordedAnswer
from astune.support.statistics import pair_apart

PairSource = Literal["human", "judge", "reward"]
PairFormat = Literal["record", "dpo", "kto", "trl", "trinity"]
SOURCES: tuple[PairSource, ...] = get_args(PairSource)
FORMATS: tuple[PairFormat, ...] = get_args(PairFormat)
Candidate = tuple[str, str, Mapping[str, Any]]
"""The msg_ids of the better and the worse answer, and what is known of the pair."""


def pair_records(
    connection: sa.Connection,
    wanted: ExportFilter,
    rules: FeedbackConfig,
    sources: Collection[str] = ("human",),
    skipped: Callable[[str], None] = lambda why: None,
) -> Iterator[Row]:
    """The records, people's first. `skipped` is told why a pair that was wanted is none."""
    loaded, seen = LoadedAnswers(connection), set[str]()
    found: dict[str, Callable[[], Iterator[Candidate]]] = {
        "human": lambda: _of_people(connection),
        "judge": lambda: _of_judges(connection),
        "reward": lambda: _of_rewards(connection, rules, loaded),
    }
    for source, candidates in found.items():
        for better, worse, about in candidates() if source in sources else ():
            answers = loaded.answers([better, worse])
            if len(answers) < 2 or not wanted.takes(answers[0]):
                continue
            record = _record(*answers) | {"source": source, **about}
            key = _digest([record["messages"], record["tools"], record["chosen"], record["rejected"]])
            why = "the same answers were compared before" if key in seen else _why_not(*answers)
            if why is not None:
                skipped(why)
                continue
            seen.add(key)
            yield record


def _why_not(chosen: RecordedAnswer, rejected: RecordedAnswer) -> str | None:
    """Why two answers are no pair; None if they are one."""
    if list(chosen.messages) != list(rejected.messages):
        return "answers that were compared were not to the same messages"
    if list(chosen.tools) != list(rejected.tools):
        return "answers that were compared were offered other tools"
    said = [meaning([{"role": "assistant", **each.turns[0][1].response}], 0) for each in (chosen, rejected)]
    return "answers that were compared are the same" if said[0] == said[1] else None


def _record(chosen: RecordedAnswer, rejected: RecordedAnswer) -> dict[str, Any]:
    messages, tools = list(chosen.messages), list(chosen.tools)
    return {
        "id": f"{chosen.heading.msg_id}>{rejected.heading.msg_id}",
        "task_id": chosen.heading.task_id or rejected.heading.task_id or f"prompt-{_digest([messages, tools])}",
        "messages": messages,
        "tools": tools,
        "chosen": dict(chosen.turns[0][1].response),
        "rejected": dict(rejected.turns[0][1].response),
        "margin": None,
        "source": None,
        "model_versions": [chosen.heading.version, rejected.heading.version],
        "judge_version": None,
        "raters": [],
        "agreement": None,
    }


def as_rows(record: Row, format: PairFormat, skipped: Callable[[str], None] = lambda why: None) -> Iterator[Row]:
    """The rows of a record in a format."""
    base = {"messages": record["messages"]}
    tools = {"tools": record["tools"]}
    if format == "record":
        yield record
    elif format == "dpo":
        yield base | {"chosen": record["chosen"], "rejected": record["rejected"]} | tools
    elif format == "kto":
        for name, good in (("chosen", True), ("rejected", False)):
            yield base | {"answer": record[name], "good": good} | tools
    else:
        pair = {name: [record[name]] for name in ("chosen", "rejected")}
        if format == "trl":
            yield {"prompt": record["messages"]} | pair | (tools if record["tools"] else {})
        elif record["tools"]:
            skipped("Trinity's DPO takes no tools, and these answers were offered some")
        else:
            yield base | pair


def is_held_out(record: Row, share: float) -> bool:
    """True if the task of the record belongs to the held-out `share` of the tasks. It depends on the task alone.

    >>> sum(is_held_out({"task_id": f"t{n}"}, 0.1) for n in range(1000))
    97
    """
    return int.from_bytes(blake2b(str(record["task_id"]).encode(), digest_size=6).digest(), "big") < share * 2**48


def _of_people(connection: sa.Connection) -> Iterator[Candidate]:
    for pair in preferences(connection, VALID):
        raters = [author for author in pair.authors if author]
        share = (1 + pair.agreement) / 2
        yield pair.better, pair.worse, {"margin": pair.agreement, "agreement": share, "raters": raters}


def _of_judges(connection: sa.Connection) -> Iterator[Candidate]:
    judges = comparisons.judges_of(connection)
    decided = {vote.comparison for vote in comparisons.every_vote(connection) if vote.choice != "skip"}
    for pair in comparisons.every_comparison(connection):
        judge = judges.get(pair.number, comparisons.REWARDS)
        if pair.judged in ("first", "second") and pair.number not in decided and judge != comparisons.REWARDS:
            ids = (pair.first, pair.second) if pair.judged == "first" else (pair.second, pair.first)
            yield *ids, {"judge_version": judge}


def _of_rewards(connection: sa.Connection, rules: FeedbackConfig, loaded: LoadedAnswers) -> Iterator[Candidate]:
    """Attempts of one call to which the same was asked: the best with the worst, the second best with the second worst,
    as long as their rewards differ."""
    groups: dict[str, list[tuple[float, str, tuple[str, ...]]]] = {}
    for judged in judgements(connection, rules, VALID):
        if judged.reward is None or judged.task_id is None or len(judged.msg_ids) > 1:
            continue
        for answer in loaded.answers(judged.msg_ids):
            group = _digest([answer.heading.client, judged.task_id, list(answer.messages), list(answer.tools)])
            groups.setdefault(group, []).append((judged.reward, answer.heading.msg_id, judged.authors))
    for attempts in groups.values():
        for best, worst in pair_apart(sorted(attempts, key=lambda each: each[1]), lambda each: each[0]):
            raters = sorted({author for author in (*best[2], *worst[2]) if author})
            yield best[1], worst[1], {"margin": best[0] - worst[0], "raters": raters}


def _digest(value: object) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
