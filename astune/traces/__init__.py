"""Tasks, pairs and examples from what users did: `astune data from-traces` and `astune online export --as tasks`.

record.py          what every reader makes of its source: conversations, their exchanges, what was said of them
databases.py       the store of the online service, and the tables of AgentScope's agent service
spans.py           OpenTelemetry's spans, with attributes gen_ai.*, as OTLP JSON
convert.py         exchanges to tasks, pairs, examples and rewards
run.py             all of it: opens a source, and reads chat logs
"""
