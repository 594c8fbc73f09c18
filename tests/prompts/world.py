"""A world in which it is known what a prompt has to say, a policy that does what it is told, and a reflector."""

import json
from pathlib import Path

from astune import WorkflowOutput
from astune.testing import script_engine

RULES = {"lower": "Write in small letters.", "brackets": "Put the answer in brackets."}


def write_tasks(path: Path, count: int = 24) -> None:
    words = [
        f"{first}{second}"
        for first in ("red", "blue", "dark", "pale", "old", "new")
        for second in ("Fox", "Owl", "Bee", "Elk")
    ]
    rows = [{"query": f"Say {word} number {at}", "answer": word} for at, word in enumerate(words[:count])]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


async def solve(task, tuner):
    system = tuner.prompt("system", default="You repeat words.")
    client = tuner.openai_client("parrot")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task.query}]
    reply = await client.chat.completions.create(model="policy", messages=messages)
    return WorkflowOutput(answer=reply.choices[0].message.content)


async def silent(task, tuner):
    return WorkflowOutput(answer="nothing", reward=0.0)


def judge(task, response):
    word = task["answer"]
    found = [response.strip("[]").lower() == word.lower(), response == response.lower(), response.startswith("[")]
    return sum(found) / 3


def answer(prompt: str) -> str:
    word = prompt.rsplit("Say ", 1)[1].split()[0]
    if RULES["lower"] in prompt:
        word = word.lower()
    return f"[{word}]" if RULES["brackets"] in prompt else word


load_engine = script_engine(answer)


def reflect(request):
    """Adds a rule that the text lacks."""
    missing = [rule for rule in RULES.values() if rule not in request.text]
    return f"{request.text} {missing[0]}" if missing else request.text


def quote(request):
    """Quotes a task and its answer, then junk, then the text."""
    result = request.results[0]
    return f"{request.text} If asked {result.query}, say {result.query.split()[1]}."


def junk(request):
    return None
