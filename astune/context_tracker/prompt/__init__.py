"""Messages become tokens, and sampled tokens become messages again.

The nouns, in the order of a call:

    Message              one message in OpenAI's shape; its `Meaning` says when two are the same     messages
    Conversations        the agent's earlier requests as a tree: a `MessageNode` for each message,   conversations
                         an `AnsweredRequest` for each request
    Match                the new request, compared with them
    SampledAnswer        an earlier answer as tokens; an `AnswerText` finds it in a rendering        sampled_answer
    Draft, then Prompt   the ids to send, before and after the text that is new is tokenized         builder
    ParsedMessage        what the model wrote: content, reasoning, `WrittenCall`s                    tool_calls

`chat_format` is the model: its template (`template`, `template_style`), its tokenizer (`encoding`) and the way in which
it writes answers (`answer_formats`).
"""
