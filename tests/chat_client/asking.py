"""What the tests of ChatModels ask, and whom."""

from pydantic import BaseModel, ConfigDict

from astune.clients.chat_models import ChatModels
from astune.config.judges import LlmJudgeConfig

QUESTION = [{"role": "user", "content": "How good is it?"}]
GOOD = 'Well done. {"score": 3}'


class Score(BaseModel):
    model_config = ConfigDict(extra="forbid")
    score: int


def chat_models(*servers, cache=None, model=None, models=None, **options):
    """ChatModels of one model per server, named a, b, ...; `model` holds settings of all, `models` of each."""
    each = models or [{}] * len(servers)
    entries = [
        {"base_url": server.base_url, "model": name, "max_retries": 0, **(model or {}), **own}
        for server, name, own in zip(servers, "abc", each, strict=False)
    ]
    config = LlmJudgeConfig(models=entries, cache=None if cache is None else str(cache), **options)
    return ChatModels(config, key="judge.llm")
