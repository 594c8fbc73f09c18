"""Why a prompt does not go on from an earlier call: the labels of forks, in one table.

cause                       what the agent, the template or the run did             set by
reasoning_stripped          the template dropped reasoning that was sampled         the prompt builder
tools_changed               the conversation goes on with other tools               the prompt builder
system_changed              only the system message is another one                  the prompt builder
history_edited              an earlier message is another one, or an answer in      the prompt builder
                            the history was never sampled in this place
truncated                   the oldest messages are gone, the rest goes on          the prompt builder
compacted                   earlier messages were replaced by fewer others          the prompt builder
template_not_append_only    the template writes earlier messages differently now    the prompt builder
new_conversation            shares at most the system message with earlier calls    the prompt builder
branch                      an earlier point is continued once more                 the merge
best_of_n                   one request asked for several answers                   the tracker
retry                       the same request was sent again after an answer         the tracker
stop_text_removed           the answer before ended with a stop text, which the     the tracker
                            history does not have
retokenized                 an engine elsewhere tokenized what was sampled anew    the tracker
other_agent                 an agent begins with tokens that another one has        the merge
"""

from __future__ import annotations

from collections.abc import Sequence

from astune.context_tracker.prompt.messages import Meaning

REASONING_STRIPPED = "reasoning_stripped"
"""The template drops reasoning that was sampled, or the agent's history has it no more and the template writes what
is left: Qwen3 once a new user message comes, gpt-oss once a final answer was given."""

TOOLS_CHANGED = "tools_changed"
"""The agent goes on with an earlier conversation but offers other tools (or the same ones written differently), which
the template writes near the start of the prompt."""

SYSTEM_CHANGED = "system_changed"
"""The system message at the start is new, gone or another one (a date, a memory, a plan in it); all else goes on."""

HISTORY_EDITED = "history_edited"
"""An earlier message differs in meaning, or the history holds an assistant message that was not sampled in this
place: examples put in by hand, a corrected answer, the answer of another agent."""

TRUNCATED = "truncated"
"""The oldest messages after the system message were dropped and the rest goes on: a sliding window."""

COMPACTED = "compacted"
"""Earlier messages were replaced by fewer others, for instance a summary, and the last ones kept."""

TEMPLATE_NOT_APPEND_ONLY = "template_not_append_only"
"""The messages go on, but the template writes earlier ones differently now: a count of messages, a notice that
moves to the last user message. Answers the template cannot write back are of this kind too."""

NEW_CONVERSATION = "new_conversation"
"""Nothing but at most the system message (and the tools) is shared with an earlier call of the agent."""

BRANCH = "branch"
"""An earlier point of the conversation is continued once more, and nothing was rewritten for it."""

BEST_OF_N = "best_of_n"
"""One request asked for several answers (`n` in OpenAI's API): they share their prompt."""

RETRY = "retry"
"""The agent sent the request of an earlier call again: its first answer was lost or not wanted."""

STOP_TEXT_REMOVED = "stop_text_removed"
"""The answer before ended with a stop text, which was sampled, is no part of its message, and so is missing in the
history. The tokens before it stay."""

RETOKENIZED = "retokenized"
"""The engine is a chat API (`astune.rollout.auxiliary_models`) that tokenizes the conversation anew, and writes what it
sampled, or what stood before it, in other tokens now."""

OTHER_AGENT = "other_agent"
"""Another agent of the episode begins with the same tokens, and nothing of its own goes before."""

_SYSTEM_ROLES = ("system", "developer")


def without_system(conversation: Sequence[Meaning]) -> Sequence[Meaning]:
    """The conversation after the system messages at its start."""
    lead = next((i for i, message in enumerate(conversation) if message[0] not in _SYSTEM_ROLES), len(conversation))
    return conversation[lead:]


def shared_start(left: Sequence[Meaning], right: Sequence[Meaning]) -> int:
    """How many messages both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(left), len(right)))


def cause_of(earlier: Sequence[Meaning], now: Sequence[Meaning]) -> str:
    """What was done to the conversation `earlier` so that `now` came of it; `now` does not go on from it.

    earlier  s a b c d e        s: system message, the letters: the others
    now      S a b c d e f      system_changed
             s c d e f          truncated: what is kept follows on nothing new
             s X c d e f        compacted: fewer others stand where a b was
             s a X c d e f      history_edited: as many or more
             s a b c e f        history_edited: an answer before what is gone is kept (a hint was taken out)
             s x y              new_conversation
    """
    before, after = without_system(earlier), without_system(now)
    head = shared_start(before, after)
    if not any(message[0] == "assistant" for message in after[head:]):
        other_system = earlier[: len(earlier) - len(before)] != now[: len(now) - len(after)]
        return NEW_CONVERSATION if not head else SYSTEM_CHANGED if other_system else HISTORY_EDITED
    last_places = {message: place for place, message in enumerate(before[head:], start=head)}
    end = next((i for i in range(len(after) - 1, head - 1, -1) if after[i] in last_places), None)
    if end is None:
        return HISTORY_EDITED if head else NEW_CONVERSATION
    place = last_places[after[end]]
    kept = shared_start(before[head : place + 1][::-1], after[head : end + 1][::-1])
    removed, put_in = place + 1 - head - kept, end + 1 - head - kept
    if any(message[0] == "assistant" for message in after[end + 1 :]) or put_in >= removed:
        return HISTORY_EDITED
    if put_in:
        return COMPACTED
    return TRUNCATED if _oldest(before, head, head + removed) else HISTORY_EDITED


def _oldest(conversation: Sequence[Meaning], start: int, stop: int) -> bool:
    """Whether messages `[start, stop)` are its oldest, but for questions at the start that a window may keep."""
    kept, gone = ([message[0] for message in part] for part in (conversation[:start], conversation[start:stop]))
    return not kept or ("assistant" not in kept and "assistant" in gone)
