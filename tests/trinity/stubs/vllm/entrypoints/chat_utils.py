from typing import Any, NoReturn

ChatTemplateContentFormat = str
ConversationMessage = dict[str, Any]


def parse_chat_messages(*args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError("pictures and video in prompts need the real vLLM")


async def parse_chat_messages_async(*args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError("pictures and video in prompts need the real vLLM")
