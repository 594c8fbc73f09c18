"""What AgentScope Java's training client sends, and how strictly it reads what comes back."""

import json

STATUS_KEYS = {"status", "message"}


def read_status(status: int, body: bytes) -> dict:
    """A reply to feedback or a commit. Its class has two optional strings, and Jackson fails on any other key; a status
    that is not 2xx is a RuntimeException, which is logged, and the reward is lost."""
    assert 200 <= status < 300, f"RuntimeException: {status}"
    said = json.loads(body)
    assert isinstance(said, dict)
    unknown = set(said) - STATUS_KEYS
    assert not unknown, f"UnrecognizedPropertyException: {sorted(unknown)}"
    assert all(value is None or isinstance(value, str) for value in said.values())
    return said


def read_chat(status: int, body: bytes) -> dict:
    """A reply to a chat. It is taken for an error if it has a top-level `error`, a `status` of "error" or "failed", or
    a numeric `code` of 400 to 599; unknown keys are let be."""
    assert 200 <= status < 300
    said = json.loads(body)
    assert said.get("error") is None and said.get("status") not in ("error", "failed")
    assert not (isinstance(said.get("code"), int) and 400 <= said["code"] <= 599)
    assert said["id"] and said["object"] == "chat.completion"
    message = said["choices"][0]["message"]
    assert message["role"] == "assistant" and {"content"} <= set(message)
    assert set(said["usage"]) >= {"prompt_tokens", "completion_tokens", "total_tokens"}
    return said
