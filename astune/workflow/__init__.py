"""What the user writes, and what it is handed: `workflow_base.Workflow` and `tuner.Tuner`.

The package imports nothing by itself; OpenAI's client, the web server and AgentScope load on first use.
"""
