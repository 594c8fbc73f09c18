"""A body of `/feedback` as what the store keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from astune.config.online import FeedbackConfig
from astune.errors import nearest
from astune.online.redaction import Redactor
from astune.online.store.feedback.rows import JUDGE, RATER
from astune.online.store.feedback.states import UNNAMED, FeedbackPart, NewFeedback
from astune.online.wire import Feedback, OutOfBounds, UnknownReward, WireError, read_wire

MOST_RATING, LEAST_RATING = 5, 1
MOST_NAMED = 20
"""Names that an error tells."""


def read_feedback(value: object, *, client: str, received: float, rules: FeedbackConfig) -> NewFeedback:
    """The JSON value `value`, which came at `received` (seconds since 1970) with the token of `client`, empty without
    tokens.

    Raises:
        WireError: it is no feedback, or says what no feedback may say.
    """
    return new_feedback(read_wire(Feedback, value), client=client, received=received, rules=rules)


def new_feedback(body: Feedback, *, client: str, received: float, rules: FeedbackConfig) -> NewFeedback:
    """A body as the store keeps it. Raises WireError for values out of bounds, names that are taken, rewards without a
    weight, and texts that cannot be stored."""
    for whose, begins in (("judge", JUDGE), ("rater", RATER)):
        if body.user is not None and body.user.startswith(begins):
            raise WireError(
                f"'user': {body.user!r} is the name of a {whose}; users' names do not begin with {begins!r}", "user"
            )
    for path, text in _texts(body):
        if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise WireError(f"{path!r}: holds a character that is none (NUL or half of a surrogate pair)", path)
    return NewFeedback(
        received=received,
        author=body.user if body.user is not None else client,
        client=client,
        parts=tuple(_read_parts(body, rules)),
        msg_ids=tuple(dict.fromkeys(body.msg_ids)),
        better=body.better,
        worse=body.worse,
        comment=body.comment,
        task_id=body.task_id,
        run_id=body.run_id,
    )


def redact(new: NewFeedback, redactor: Redactor) -> NewFeedback:
    """Redact the comment as a text of the user and the correction as one of the assistant. A correction of which
    nothing may be written becomes None."""
    parts = (replace(each, correction=redactor.text(each.correction, "assistant")) for each in new.parts)
    return replace(new, comment=redactor.text(new.comment), parts=tuple(parts))


def _read_parts(body: Feedback, rules: FeedbackConfig) -> Iterator[FeedbackPart]:
    if body.reward is not None:
        yield FeedbackPart("number", value=_check_bounds(body.reward, "reward", rules))
    for name, value in (body.rewards or {}).items():
        if name == UNNAMED:
            raise WireError(
                f"'rewards.{UNNAMED}': {UNNAMED!r} is the reward without a name; name it otherwise, or send it as "
                f"{UNNAMED!r} alone",
                f"rewards.{UNNAMED}",
            )
        within = _check_bounds(value, f"rewards.{name}", rules)
        if name not in rules.rewards:
            raise UnknownReward(_explain_no_weight(name, rules), f"rewards.{name}")
        yield FeedbackPart("number", name, within)
    if body.thumb is not None:
        yield FeedbackPart("thumb", value=float(body.thumb == "up"))
    if body.rating is not None:
        yield FeedbackPart(
            "rating", rules.rating_as or UNNAMED, (body.rating - LEAST_RATING) / (MOST_RATING - LEAST_RATING)
        )
    if body.correction is not None:
        yield FeedbackPart("correction", "correction", correction=body.correction)
    if body.better is not None:
        yield FeedbackPart("preference", "preference")


def _explain_no_weight(name: str, rules: FeedbackConfig) -> str:
    known = sorted(rules.rewards)
    some = ", ".join(map(repr, known[:MOST_NAMED])) + (
        f" and {len(known) - MOST_NAMED} more" * (len(known) > MOST_NAMED)
    )
    return (
        f"'rewards.{name}': astune.online.feedback.rewards has no weight for it, and what has none does not count; it "
        f"has {some or 'none at all'}.{nearest(name, known)}"
    )


def _check_bounds(value: float, path: str, rules: FeedbackConfig) -> float:
    if not rules.least <= value <= rules.most:
        bounds = f"{rules.least:g} and {rules.most:g} (astune.online.feedback.least and most)"
        raise OutOfBounds(f"{path!r}: {value:g} is not between {bounds}", path)
    return value


def _texts(body: Feedback) -> Iterator[tuple[str, str]]:
    for path in ("comment", "correction", "user", "task_id", "run_id", "better", "worse"):
        text = getattr(body, path)
        if text is not None:
            yield path, text
    yield from ((f"msg_ids[{place}]", msg_id) for place, msg_id in enumerate(body.msg_ids))
    yield from (("rewards", name) for name in body.rewards or ())
