"""The model calls of an episode: chat requests in, exact tokens recorded, timelines out.

The way of one call, `ContextTracker.choices` in `tracker`:

    request     ChatRequest        what the agent asks for (`gateway` reads it from HTTP)
    prompt/     -> Prompt          messages become tokens; what was sent or sampled before keeps its tokens
    sources     Call -> Answer     a source answers: the policy, or an auxiliary model (`chat_source`)
    turns       -> Turn            the answer becomes a turn, and a ChatAnswer for the agent
    merge/      -> Timeline        turns become timelines
    forks                          why a timeline does not go on from an earlier one; all of these bring it facts

A source is what answers a call, and nothing else. Beside it stand `write_answer` (a given message as tokens),
`scripted_policy` (answers without a model) and `broken_history` (tool calls and results that do not fit).
"""
