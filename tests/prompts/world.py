"""A world in which it is known what a prompt has to say, a model that does what it is told, and reflectors."""

from typing import Any

from openai.types.chat import ChatCompletionMessageParam

from astune import Task, Tuner, WorkflowOutput
from astune.config.schema import AstuneConfig
from astune.prompts.reflection import ReflectionRequest
from astune.testing import script_engine
from astune.training.engine import Engine

FIRST = "You repeat words."
RULES = {"lower": "Write in small letters.", "brackets": "Put the answer in brackets."}
SHOUT = {"type": "function", "function": {"name": "shout", "description": "Says it loudly.", "parameters": {}}}


def tasks(count: int = 24) -> list[dict[str, str]]:
    colours, animals = ("red", "blue", "dark", "pale", "old", "new"), ("Fox", "Owl", "Bee", "Elk")
    words = [colour + animal for colour in colours for animal in animals]
    return [{"query": f"Say {word} number {at}", "answer": word} for at, word in enumerate(words[:count])]


async def ask(tuner: Tuner, system: str, query: str, **options: Any) -> WorkflowOutput:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": system},
        {"role": "user", "content": query},
    ]
    reply = await tuner.openai_client("parrot").chat.completions.create(model="policy", messages=messages, **options)
    return WorkflowOutput(answer=reply.choices[0].message.content)


async def solve(task: Task, tuner: Tuner) -> WorkflowOutput:
    return await ask(tuner, tuner.prompt("system", default=FIRST), task.query)


async def solve_in_city(task: Task, tuner: Tuner) -> WorkflowOutput:
    return await ask(tuner, tuner.prompt("system", default="You serve in {city}.", city="Rome"), task.query)


async def solve_with_tool(task: Task, tuner: Tuner) -> WorkflowOutput:
    return await ask(tuner, tuner.prompt("system", default=FIRST), task.query, tools=[SHOUT])


async def repeat(task: dict[str, Any], tuner: Tuner, system_prompt: str) -> WorkflowOutput:
    return await ask(tuner, system_prompt, task["query"])


async def silent(task: Task, tuner: Tuner) -> WorkflowOutput:
    return WorkflowOutput(answer="nothing")


def judge(task: dict[str, Any], response: str) -> float:
    word = task["answer"]
    found = [response.strip("[]").lower() == word.lower(), response == response.lower(), response.startswith("[")]
    return sum(found) / 3


def answer(prompt: str) -> str:
    word = prompt.rsplit("Say ", 1)[1].split()[0]
    if RULES["lower"] in prompt:
        word = word.lower()
    return f"[{word}]" if RULES["brackets"] in prompt else word


load_engine = script_engine(answer)


def no_engine(config: AstuneConfig) -> Engine:
    """An engine that is not asked for anything."""
    return script_engine([])(config)


def reflect(request: ReflectionRequest) -> str:
    """Adds a rule that the text lacks."""
    missing = [rule for rule in RULES.values() if rule not in request.text]
    return f"{request.text} {missing[0]}" if missing else request.text


def quote(request: ReflectionRequest) -> str:
    """Quotes a task and its answer."""
    result = request.results[0]
    return f"{request.text} If they {result.query}, write {result.query.split()[1]}."


def junk(request: ReflectionRequest) -> None:
    """Says nothing."""


def fail(request: ReflectionRequest) -> str:
    raise ValueError("no idea")


def lose_placeholder(request: ReflectionRequest) -> str:
    return "You serve." if request.wrong else "You help."


def reflect_tool(request: ReflectionRequest) -> str:
    """Writes one rule into the system's text and the other into the tool's description."""
    return f"{request.text} {RULES['lower' if request.name == 'system' else 'brackets']}"
