"""An endpoint over the context tracker that speaks OpenAI's API and Anthropic's: agents of any framework or language,
captured unchanged."""
