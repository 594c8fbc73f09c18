"""`astune online serve`: an OpenAI-compatible service that writes down every call before it answers, takes feedback and
commits, and answers with new versions of the model as they are made.

    POST /v1/chat/completions, /v1/responses      recorded, then answered        chat, conversations, callers
    POST /feedback, /commit, /v1/astune/records   rows in the store              submissions, records
    GET  /v1/models, /health, /metrics, /v1/astune/...                           lookups, metrics
"""
