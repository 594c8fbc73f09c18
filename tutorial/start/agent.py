"""The agent: any code that asks a model through OpenAI's API. `tuner` gives it the model that is trained."""

import json
from operator import add, floordiv, mul, sub

from astune import Task, Tuner, WorkflowOutput

OPERATIONS = {"+": add, "-": sub, "*": mul, "/": floordiv}
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CALCULATOR = {"name": "calculator", "description": "Calculate with two whole numbers.", "parameters": PARAMETERS}


def calculate(arguments: str) -> str:
    try:
        left, sign, right = json.loads(arguments)["expression"].split()
        return str(OPERATIONS[sign](int(left), int(right)))
    except Exception as error:
        return f"Error: {error!r}"  # a result that begins like this is counted as a call that failed


async def answer(task: Task, tuner: Tuner) -> WorkflowOutput:
    client, tools = tuner.openai_client("agent"), [{"type": "function", "function": CALCULATOR}]
    system = tuner.prompt("system", default="You work at a till. Use the calculator. End with: The answer is N.")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task.query}]
    for _ in range(5):
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            result = calculate(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls:
            break
    return WorkflowOutput(answer=message.content)
