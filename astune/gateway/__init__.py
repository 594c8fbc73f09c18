"""An OpenAI-compatible endpoint over the context tracker: agents of any framework or language, captured unchanged."""
