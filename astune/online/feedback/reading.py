"""A body of `/feedback` as what the store keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from astune.config.online import FeedbackConfig
from astune.online.redaction import Redactor
from astune.online.wire import Feedback, WireError, read_wire
from astune.store.feedback.rows import JUDGE
from astune.store.feedback.states import UNNAMED, NewFeedback, Said

MOST_RATING, LEAST_RATING = 5, 1


def read_feedback(value: object, *, client: str, received: float, rules: FeedbackConfig) -> NewFeedback:
    """The JSON value `value`, which came at `received` (seconds since 1970) with the token of `client`, empty without
    tokens.

    Raises:
        WireError: it is no feedback, or says what no feedback may say.
    """
    return new_feedback(read_wire(Feedback, value), client=client, received=received, rules=rules)


def new_feedback(body: Feedback, *, client: str, received: float, rules: FeedbackConfig) -> NewFeedback:
    """A body as the store keeps it. Raises WireError for values out of bounds, names that are taken, and texts that
    cannot be stored."""
    if body.user is not None and body.user.startswith(JUDGE):
        raise WireError(
            f"'user': {body.user!r} is the name of a judge; users' names do not begin with {JUDGE!r}", "user"
        )
    for path, text in _texts(body):
        if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise WireError(f"{path!r}: holds a character that is none (NUL or half of a surrogate pair)", path)
    said = tuple(_said(body, rules))
    return NewFeedback(
        received=received,
        author=body.user if body.user is not None else client,
        client=client,
        said=said,
        msg_ids=tuple(dict.fromkeys(body.msg_ids)),
        better=body.better,
        worse=body.worse,
        comment=body.comment,
        task_id=body.task_id,
        run_id=body.run_id,
    )


def redacted(new: NewFeedback, redactor: Redactor) -> NewFeedback:
    """What may be written of it: a comment as words of the user, a correction as those of the assistant. A correction
    of which nothing is left is None."""
    said = (replace(each, correction=redactor.text(each.correction, "assistant")) for each in new.said)
    return replace(new, comment=redactor.text(new.comment), said=tuple(said))


def _said(body: Feedback, rules: FeedbackConfig) -> Iterator[Said]:
    if body.reward is not None:
        yield Said("number", value=_within(body.reward, "reward", rules))
    for name, value in (body.rewards or {}).items():
        if name == UNNAMED:
            raise WireError(
                f"'rewards.{UNNAMED}': {UNNAMED!r} is the reward without a name; name it otherwise, or send it as "
                f"{UNNAMED!r} alone",
                f"rewards.{UNNAMED}",
            )
        yield Said("number", name, _within(value, f"rewards.{name}", rules))
    if body.thumb is not None:
        yield Said("thumb", value=float(body.thumb == "up"))
    if body.rating is not None:
        yield Said("rating", value=(body.rating - LEAST_RATING) / (MOST_RATING - LEAST_RATING))
    if body.correction is not None:
        yield Said("correction", "correction", correction=body.correction)
    if body.better is not None:
        yield Said("preference", "preference")


def _within(value: float, path: str, rules: FeedbackConfig) -> float:
    if not rules.least <= value <= rules.most:
        raise WireError(f"{path!r}: {value:g} is not between {rules.least:g} and {rules.most:g}", path)
    return value


def _texts(body: Feedback) -> Iterator[tuple[str, str]]:
    for path in ("comment", "correction", "user", "task_id", "run_id", "better", "worse"):
        text = getattr(body, path)
        if text is not None:
            yield path, text
    yield from ((f"msg_ids[{place}]", msg_id) for place, msg_id in enumerate(body.msg_ids))
    yield from (("rewards", name) for name in body.rewards or ())
