"""Messages become tokens, and sampled tokens become messages again.

`builder` makes the prompt of a call from `conversations` (what is known of the messages), `sampled_answer` (where the
template's text has the answers as they were sampled) and `chat_format` (the model's template and tokenizer, with
`template`, `vocabulary`, `messages`, `call_style`). `answer_formats` and `tool_calls` read what a model wrote.
"""
