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
    other_agent                 an agent begins with tokens that another one has        the merge
"""

from __future__ import annotations

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

OTHER_AGENT = "other_agent"
"""Another agent of the episode begins with the same tokens, and nothing of its own goes before."""
