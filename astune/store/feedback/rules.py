"""What becomes of feedback: the rules, without the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.config.online import FeedbackConfig
from astune.store.answers import KnownAnswer
from astune.store.feedback.rows import Row

STATES: Mapping[str, str] = {
    "counts": "the next commit may train on it",
    "trained": "a version was made from it",
    "waits": "an answer that it names is not known yet",
    "held": "it is more than the limits allow or off everyone's: somebody must look, `astune online held`",
    "replaced": "the same author said something else later, or a person spoke where a judge had",
    "late": "its answers had been trained already; it is kept and counted, and not trained",
    "left_out": "a commit could not use it, for the reason that it names",
    "expired": "no answer that it names became known in time",
    "refused": "it is about another client's answers or those of several users, or somebody refused it",
}
"""Every state that feedback can be in."""


ACCEPTED = "accepted by hand"
"""The reason of what was held and counts now: no rule holds it again."""


@dataclass(frozen=True)
class Facts:
    """What the rules go by, besides the feedback itself."""

    known: Mapping[str, KnownAnswer]
    trained: set[str]
    in_hour: int
    """Other bodies of the same author in the hour before."""
    in_conversation: int
    """Other bodies about the conversation."""
    target_trained: bool
    """Whether the author's word on these answers was trained already."""
    now: float


def decided(row: Row, facts: Facts, rules: FeedbackConfig) -> tuple[str, str | None]:
    """State and reason of a row that is new, waited, or was accepted by hand. Reasons name nobody: they stay in the
    audit when somebody's data are deleted."""
    known = [facts.known[msg_id] for msg_id in row.ids if msg_id in facts.known]
    missing = [msg_id for msg_id in row.ids if msg_id not in facts.known]
    refusal = _refusal(row, known)
    if refusal:
        return "refused", refusal
    if row.kind == "correction" and row.correction is None:
        return "left_out", "astune.online.redact left nothing of the correction"
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


def winners(rows: Sequence[Row]) -> list[Row]:
    """Those that count, of one author on the same answers. The last says it; named rewards that stand beside each other
    are one word, and a plain score and named ones take each other's place."""
    ordered = sorted(rows, key=lambda row: row.age)
    if not ordered or ordered[0].part != "score":
        return ordered[-1:]
    plain = [row for row in ordered if row.name == "reward"][-1:]
    named = {row.name: row for row in ordered if row.name != "reward"}
    newer = [row for row in named.values() if not plain or row.age > plain[0].age]
    return newer or plain


def _refusal(row: Row, known: Sequence[KnownAnswer]) -> str:
    if any(answer.client != row.client for answer in known):
        return "it is about another client's answers"
    users = {answer.user for answer in known if answer.user is not None}
    return "it is about answers to several users" if len(users) > 1 else ""


def _excess(row: Row, facts: Facts, rules: FeedbackConfig) -> str:
    named = row.author not in ("", row.client)
    most = rules.per_user_per_hour if named else rules.unnamed_per_hour
    if facts.in_hour >= most:
        return f"more than {most} {'by this user' if named else 'by people without a name'} in an hour"
    if facts.in_conversation >= rules.per_conversation:
        return f"more than {rules.per_conversation} about one conversation"
    return ""
