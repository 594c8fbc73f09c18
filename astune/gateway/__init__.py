"""An endpoint that speaks OpenAI's API and Anthropic's over the context tracker: agents of any framework or language, captured unchanged."""
