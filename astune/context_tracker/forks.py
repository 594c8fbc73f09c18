"""Why a timeline does not go on from an earlier one: the labels of forks, and the one place that decides on them.

Three functions decide, as more is known: `of_prompt` when a prompt is built, `of_turn` when its call is answered,
`of_timeline` when the turn is merged with the others. Whoever calls them brings facts, never labels.

cause                       what the agent, the template or the run did             decided in
reasoning_stripped          the template dropped reasoning that was sampled         of_prompt
tools_changed               the conversation goes on with other tools               of_prompt
system_changed              only the system message is another one                  of_prompt
history_edited              an earlier message is another one, or an answer in      of_prompt
                            the history was never sampled in this place
truncated                   the oldest messages are gone, the rest goes on          of_prompt
compacted                   earlier messages were replaced by fewer others          of_prompt
template_not_append_only    the template writes earlier messages differently now    of_prompt
new_conversation            shares at most the system message with earlier calls    of_prompt
branch                      an earlier point is continued once more                 of_timeline
best_of_n                   one request asked for several answers                   of_turn
retry                       the same request was sent again after an answer         of_turn
stop_text_removed           the answer before ended with a stop text, which the     of_turn
                            history does not have
retokenized                 an engine elsewhere tokenized what was sampled anew     of_turn
context_cut                 the run cut the conversation to make room               of_turn
other_agent                 an agent begins with tokens that another one has        of_timeline
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astune.context_tracker.prompt.messages import Meaning, without_system
from astune.ropes import common_start

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

CONTEXT_CUT = "context_cut"
"""The run took old tool results out of the conversation, or put a summary in their place (`astune.rollout.context`)."""

OTHER_AGENT = "other_agent"
"""Another agent of the episode begins with the same tokens, and nothing of its own goes before."""


def of_prompt(
    *,
    goes_on: bool,
    changed_from: Sequence[Meaning] | None,
    now: Sequence[Meaning],
    other_tools: bool,
    rewritten: bool,
    reasoning_lost: Callable[[], bool],
) -> str | None:
    """The cause that messages and template tell of, when a prompt is built.

    `goes_on`: the prompt's tokens go on from the last answer in its messages. `changed_from`: the earlier conversation
    that became `now`, the messages of this one; None if they only add to it. `other_tools`: the earlier calls that it
    goes on from offered others. `rewritten`: the template writes an answer otherwise than it was sampled, and
    `reasoning_lost()` says whether its reasoning is gone; asked last, as it takes the answers apart.
    """
    if goes_on:
        return None
    if changed_from is not None:
        return _of_change(changed_from, now)
    if other_tools:
        return TOOLS_CHANGED
    if not rewritten:
        return None
    return REASONING_STRIPPED if reasoning_lost() else TEMPLATE_NOT_APPEND_ONLY


def of_turn(
    prompt_fork: str | None,
    *,
    choice: int,
    retry: bool,
    cut: bool,
    sent_before: bool,
    stop_text_removed: bool,
    retokenized: bool,
) -> str | None:
    """The cause that a turn has, when its call is answered; the merge drops it where the tokens go on all the same.

    `prompt_fork`: what `of_prompt` said. `choice`: the number of the answer among those to one request. `cut`: the run
    cut the conversation for this call.
    `sent_before`: an earlier request had the same history, so this one is a branch of it and rewrites nothing.
    """
    if choice:
        return BEST_OF_N
    if cut:
        return CONTEXT_CUT
    if prompt_fork is not None:
        return prompt_fork
    if retry:
        return RETRY
    if sent_before:
        return None
    if stop_text_removed:
        return STOP_TEXT_REMOVED
    return RETOKENIZED if retokenized else None


def of_timeline(turn_fork: str | None, *, agent_known: bool, tokens_known: bool) -> str | None:
    """The cause of the timeline that begins with a turn whose prompt goes on from none of its agent, or from one that
    is continued already. `turn_fork`: what `of_turn` said. `tokens_known`: the prompt begins as an earlier turn's
    tokens do. None for the first timeline of an agent that shares nothing."""
    if turn_fork is not None:
        return turn_fork
    if agent_known:
        return BRANCH
    return OTHER_AGENT if tokens_known else None


def _of_change(earlier: Sequence[Meaning], now: Sequence[Meaning]) -> str:
    """The cause, by what was done to the conversation `earlier` to make `now` of it, which does not go on from it.

    earlier  s a b c d e        s: system message, the letters: the others
    now      S a b c d e f      system_changed
             s c d e f          truncated: what is kept follows on nothing new
             s X c d e f        compacted: fewer others stand where a b was
             s a X c d e f      history_edited: as many or more
             s a b c e f        history_edited: an answer before what is gone is kept (a hint was taken out)
             s x y              new_conversation
    """
    before, after = without_system(earlier), without_system(now)
    head = common_start(before, after)
    if not any(message[0] == "assistant" for message in after[head:]):
        other_system = earlier[: len(earlier) - len(before)] != now[: len(now) - len(after)]
        return NEW_CONVERSATION if not head else SYSTEM_CHANGED if other_system else HISTORY_EDITED
    last_places = {message: place for place, message in enumerate(before[head:], start=head)}
    end = next((i for i in range(len(after) - 1, head - 1, -1) if after[i] in last_places), None)
    if end is None:
        return HISTORY_EDITED if head else NEW_CONVERSATION
    place = last_places[after[end]]
    kept = common_start(before[head : place + 1][::-1], after[head : end + 1][::-1])
    removed, put_in = place + 1 - head - kept, end + 1 - head - kept
    if any(message[0] == "assistant" for message in after[end + 1 :]) or put_in >= removed:
        return HISTORY_EDITED
    if put_in:
        return COMPACTED
    return TRUNCATED if _oldest(before, head, head + removed) else HISTORY_EDITED


def _oldest(conversation: Sequence[Meaning], start: int, stop: int) -> bool:
    """True if messages `[start, stop)` are the oldest, but for questions at the start that a window may keep."""
    kept, gone = ([message[0] for message in part] for part in (conversation[:start], conversation[start:stop]))
    return not kept or ("assistant" not in kept and "assistant" in gone)
