"""Labels of the context tracker and of the receipt, and the metrics that pages draw, in plain sentences."""

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
    "context_cut": "The run took out old tool results, or put a summary in their place (astune.rollout.context).",
    "other_agent": "Another agent began with the same tokens.",
}
"""Why a training row does not go on from an earlier one (`astune.context_tracker.forks`)."""

UNREAD = (
    "It has marks of a tool call, and no call could be read: a tag or a bracket is missing, or the model's template "
    "would refuse the call. The agent was given it as text (docs/zero_reward.md)."
)
"""What an answer with call marks and no call is (`Turn.unread`)."""

LEFT_OUT = {
    "unjudged": "The episode has no reward: it failed, or nobody judged it.",
    "late": "The episode had not ended when its step had its quorum (astune.synchronizer.quorum).",
    "no_signal": "All attempts at the task did equally well: there is nothing to learn from.",
    "balanced": "Its group had too many of its kind, right or wrong (astune.algorithm.balance).",
    "not_replayed": "Played again from its seed it went another way, or was not judged (agent_reward: leave_one_out).",
    "wrong": "It is not right, and method rft learns from right attempts alone.",
    "repeated": "Another attempt at the task says the same, token by token (method rft).",
    "surplus": "Enough attempts at the task are kept already (astune.algorithm.keep_per_task).",
    "skipped_update": "The update was thrown away, as its loss or gradient was no finite number.",
    "not_its_turn": "It was another model's turn to learn (astune.trainer.update).",
    "no_teacher": "The teacher did not weigh the episode (astune.algorithm.teacher).",
    "frozen": "The agent is not trained: it has trainable=False, runs on a model that is not trained, or "
    "astune.algorithm.trained_agents does not name it.",
    "greedy": "Drawn greedily (temperature below 0.01, top_k 1 or a tiny top_p): there is nothing to compare.",
    "retried": "The agent asked again and never went on from this answer.",
    "inexact": "The token ids were made from text and may not be those that were sampled.",
    "no_logprobs": "The engine did not report log-probabilities.",
    "edited": "A person wrote the answer in the debugger; the model did not sample it.",
    "forced": "Another engine held the model to a tool call or to JSON.",
}
"""Why sampled tokens are not trained (`astune.algorithm.receipt`, `Turn.excluded`)."""

METRICS = {
    "reward/mean": "Mean of what the attempts of the step were worth. It is to rise.",
    "success/mean": "Share of the step's attempts that the judge calls right. It is to rise.",
    "loss": "What an update makes smaller. Learning from rewards it says next to nothing: look at the reward. Learning "
    "from examples or preferences it is to fall.",
    "held_out/examples/loss": "The loss of examples that are not learned from. Where it rises while the loss falls, "
    "the model learns its examples by heart.",
    "preference/accuracy": "Share of the pairs in which training has made the better answer gain more than the worse "
    "one. Guessing gives a half, it is to rise; at 1 there is nothing more to learn in these pairs.",
    "preference/margin": "By how much more the better answers have gained than the worse ones. It is to rise; far "
    "above 10 the model has moved a long way from where it began.",
    "grad_norm": "How strongly the step pulled at the weights, before it was bounded. Single peaks far above the rest "
    "say that the learning rate is too high.",
    "entropy": "How undecided the model is between next words. It falls slowly as the model learns; near 0 all "
    "attempts are the same, and nothing more is tried.",
    "kl/sampler": "How far the weights that are trained have moved from those that made the attempts. It is to be "
    "small; a rise says that updates are too large, or the two engines calculate differently.",
    "kl/reference": "How far the model has moved from where it began. It rises as it learns; a jump is a warning.",
    "clip_fraction": "Share of the words whose push was cut off, as they had moved far enough. Above a fifth or so the "
    "updates are too large.",
    "tokens/sampled": "Tokens (pieces of words) that the model wrote.",
    "tokens/trained": "Those of them that were learned from.",
    "tokens/flattened_per_unique": "How often the same text was computed again: 1 is never.",
    "turns/mean": "Calls of the model in an attempt.",
    "groups/no_signal": "Tasks at which all attempts were worth the same: there was nothing to learn. Many of them say "
    "that the tasks are too easy or too hard.",
    "curriculum/learning": "Tasks at which some attempts are right and some wrong: a curriculum draws from these.",
    "episodes/failed": "Attempts that broke, or took too long. They are counted, and nothing is learned from them.",
    "time/step": "Seconds of the step.",
    "throughput/tokens_per_second": "Tokens that the model wrote in a second.",
}
"""What a metric says to people who do not train models every day, of those that the report and the viewer draw."""
