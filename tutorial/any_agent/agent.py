"""A command-line agent as it might stand anywhere: a process of its own, without AgentScope and without ASTune.

python agent.py http://127.0.0.1:8000/v1 "Lena buys 3 packs of 5 beads. How many beads does Lena have?"
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "math_agent"))
from calculator import calculator

MOST_ROUNDS = 5
SYSTEM = "Use the calculator. End with: The answer is N."
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate arithmetic.",
        "parameters": {
            "properties": {"expression": {"description": "for example 12 * 7", "type": "string"}},
            "required": ["expression"],
            "type": "object",
        },
    },
}


def chat(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = json.dumps({"model": "any", "messages": messages, "tools": [CALCULATOR]}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def answer(url: str, question: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(MOST_ROUNDS):
        message = chat(url, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"] or ""
        for call in message["tool_calls"]:
            expression = json.loads(call["function"]["arguments"]).get("expression", "")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": calculator(str(expression))})
    return ""


if __name__ == "__main__":
    print(answer(*sys.argv[1:]))
