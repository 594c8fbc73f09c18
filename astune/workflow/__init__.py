"""The user's side of an episode: `workflow_base.Workflow` is what a user writes, `tuner.Tuner` what it is handed.

The package imports nothing by itself; OpenAI's client, the web server and AgentScope load on first use.
"""
