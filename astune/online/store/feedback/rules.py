"""The rules that decide the state of feedback, without the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.config.online import FeedbackConfig
from astune.online.store.answers import KnownAnswer
from astune.online.store.feedback.rows import ACCEPTED, FeedbackRow

STATES: Mapping[str, str] = {
    "counts": "the next commit may train on it",
    "trained": "a version was made from it",
    "waits": "an answer that it names is not known yet",
    "held": "it is more than the limits allow, off everyone's or of no weight: look at it with `astune online held`",
    "replaced": "the same author said something else later, or a person spoke where a judge had",
    "late": "its answers had been trained already; it is kept and counted, and not trained",
    "left_out": "a commit could not use it, for the reason that it names",
    "expired": "no answer that it names became known in time",
    "refused": "it is about another client's or another user's answers, or those of several users, or somebody "
    "refused it",
}
"""Every state that feedback can be in."""


@dataclass(frozen=True)
class Facts:
    """The facts that the rules need besides the feedback itself."""

    known: Mapping[str, KnownAnswer]
    trained: set[str]
    in_hour: int
    """Number of other bodies of the same author in the hour before."""
    in_conversation: int
    """Number of other bodies about the conversation."""
    target_trained: bool
    """True if earlier feedback of the author on these answers was trained already."""
    now: float


def decide(row: FeedbackRow, facts: Facts, rules: FeedbackConfig) -> tuple[str, str | None]:
    """Decide on a row that is new, has waited, or was accepted by hand: its state and reason. A reason names no person,
    as it stays in the audit after a deletion."""
    known = [facts.known[msg_id] for msg_id in row.ids if msg_id in facts.known]
    missing = [msg_id for msg_id in row.ids if msg_id not in facts.known]
    refusal = _refusal(row, known)
    if refusal:
        return "refused", refusal
    if row.kind == "correction" and row.correction is None:
        return "left_out", "astune.online.redact left nothing of the correction"
    if row.kind == "number" and row.value is None:
        return "left_out", "what followed tells nothing of the answer"
    over = facts.now >= row.received + rules.wait_seconds
    if missing and not over:
        return "waits", f"{len(missing)} of {len(row.ids)} answers are not known yet"
    if missing and (not known or row.kind == "preference"):
        return "expired", "its answers never became known"
    if row.state != "accepted" and not row.of_judge and row.state != "replaced":
        excess = _excess(row, facts, rules)
        if excess:
            return "held", excess
    nothing_new = all(answer.msg_id in facts.trained for answer in known) and row.kind != "correction"
    if nothing_new or facts.target_trained:
        return "late", "its answers were trained before it came"
    accepted = ACCEPTED if row.state == "accepted" else None
    return "counts", f"without {len(missing)} answers that nobody knows" if missing else accepted


def winners(rows: Sequence[FeedbackRow]) -> list[FeedbackRow]:
    """Choose the rows that count, of one author on the same answers: the latest. Named rewards count together, each
    with its latest value; a score without a name and named rewards replace each other."""
    ordered = sorted(rows, key=lambda row: row.age)
    if not ordered or ordered[0].part != "score":
        return ordered[-1:]
    plain = [row for row in ordered if row.name == "reward"][-1:]
    named = {row.name: row for row in ordered if row.name != "reward"}
    newer = [row for row in named.values() if not plain or row.age > plain[0].age]
    return newer or plain


def _refusal(row: FeedbackRow, known: Sequence[KnownAnswer]) -> str:
    if any(answer.client != row.client for answer in known):
        return "it is about another client's answers"
    users = {answer.user for answer in known if answer.user is not None}
    if len(users) > 1:
        return "it is about answers to several users"
    return "it is about another user's answers" if row.user and users - {row.user} else ""


def _excess(row: FeedbackRow, facts: Facts, rules: FeedbackConfig) -> str:
    most = rules.per_user_per_hour if row.user else rules.unnamed_per_hour
    if facts.in_hour >= most:
        return f"more than {most} {'by this user' if row.user else 'by people without a name'} in an hour"
    if facts.in_conversation >= rules.per_conversation:
        return f"more than {rules.per_conversation} about one conversation"
    return ""
