"""The model calls of an episode: chat requests in, exact tokens recorded, timelines out.

The way of one call, `ContextTracker.choices` in `tracker`:

    calls       ChatRequest        the request of the agent (`gateway` reads it from HTTP)
    prompt/     -> Prompt          messages become tokens; what was sent or sampled before keeps its tokens
    calls       Call -> Answer     a source answers: the policy, or an auxiliary model (`chat_source`)
                -> Turn            the answer becomes a turn, and a ChatAnswer for the agent
    merge       -> Timeline        turns become timelines
    forks                          why a timeline does not go on from an earlier one; all of these bring it facts

A source answers a call, and does nothing else. Beside it stand `write_answer` (a given message as tokens) and
`scripted_policy` (answers without a model).
"""
