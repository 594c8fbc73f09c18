"""Labels of the context tracker and of the receipt in plain sentences."""

from __future__ import annotations

FORKS = {
    "reasoning_stripped": "The chat template or the agent dropped reasoning that the model had written.",
    "tools_changed": "The agent went on with other tools, which stand near the start of the prompt.",
    "system_changed": "The agent went on with another system message.",
    "history_edited": "An earlier message was changed, or the history holds an answer that the model never gave there.",
    "truncated": "The oldest messages were dropped and the rest went on.",
    "compacted": "Earlier messages were replaced by fewer others, such as a summary.",
    "template_not_append_only": "The chat template wrote earlier messages differently than before.",
    "stop_text_removed": "The answer before ended with a stop text, which the history does not have.",
    "retokenized": "The chat API behind the agent wrote an earlier answer, or what stood before it, in other tokens.",
    "new_conversation": "The agent began a new conversation.",
    "branch": "The agent went on from an earlier point once more.",
    "best_of_n": "One request asked for several answers.",
    "retry": "The same request was sent again.",
    "other_agent": "Another agent began with the same tokens.",
}
"""Why a training row does not go on from an earlier one (`astune.context_tracker.forks`)."""

LEFT_OUT = {
    "unjudged": "The episode has no reward: it failed, or nobody judged it.",
    "late": "The episode had not ended when its step had its quorum (astune.synchronizer.quorum).",
    "no_signal": "All attempts at the task did equally well: there is nothing to learn from.",
    "balanced": "Its group had too many of its kind, right or wrong (astune.algorithm.balance).",
    "wrong": "It is not right, and method rft learns from right attempts alone.",
    "repeated": "Another attempt at the task says the same, token by token (method rft).",
    "surplus": "Enough attempts at the task are kept already (astune.algorithm.keep_per_task).",
    "skipped_update": "The update was thrown away, as its loss or gradient was no finite number.",
    "no_teacher": "The teacher did not weigh the episode (astune.algorithm.teacher).",
    "frozen": "The agent is not trained: it has trainable=False, or runs on a model that is not trained.",
    "greedy": "Drawn greedily (temperature below 0.01, top_k 1 or a tiny top_p): there is nothing to compare.",
    "retried": "The agent asked again and never went on from this answer.",
    "inexact": "The token ids were made from text and may not be those that were sampled.",
    "no_logprobs": "The engine did not report log-probabilities.",
    "edited": "A person wrote the answer in the debugger; the model did not sample it.",
    "forced": "Another engine held the model to a tool call or to JSON.",
}
"""Why sampled tokens are not trained (`astune.algorithm.receipt`, `Turn.excluded`)."""
