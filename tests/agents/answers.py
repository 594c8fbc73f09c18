"""What the policy says in the episodes of this folder: for each workflow and agent, its answers in order.

AgentScope 1.x and 2.x get the same answers, unless they ask for different things. They are written as models write:
reasoning, arguments in an odd JSON layout, several calls at once, text that is not ASCII.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

GUIDE, OPTIMIST, SCEPTIC = "You guide travellers.", "You are an optimist.", "You are a sceptic."
CHIEF, CLERK, SCOUT = "You lead a team.", "You keep the files.", "You scout ahead."
"""System prompts. They tell a script which agent asks."""


def script(answers: Mapping[str, Sequence[str]]) -> Callable[[str], str]:
    """For a `ScriptedPolicy`: the next answer of the agent whose system prompt is in the prompt."""
    left = {system: list(texts) for system, texts in answers.items()}

    def answer(prompt: str) -> str:
        (system,) = (system for system in left if system in prompt)
        return left[system].pop(0)

    return answer


def think(reasoning: str, text: str) -> str:
    return f"<think>\n{reasoning}\n</think>\n\n{text}"


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ODD_CALL = '<tool_call>\n{"name":  "weather",  "arguments": {"city":"Z\\u00fcrich",   "days":1e0}}\n</tool_call>'
TOOLS = {
    GUIDE: [
        think("Where to?\nFirst Zürich.", ODD_CALL),
        think(
            "Now two more.",
            "Also these. 🌦\n"
            + call("weather", '{"days":2,"city":"東京"}')
            + "\n"
            + call("weather", '{"city": "Atlantis"}'),
        ),
        "There is no Atlantis.  Zürich:\tsunny.",
        think("Another one.", call("weather", '{ "city": "Bern" }')),
        "Bern is sunny too.",
    ]
}
DEBATE = {
    OPTIMIST: ["It will be fine.", think("Why not?", "Even in 東京 it will.")],
    SCEPTIC: ["I doubt it.", "Take a coat ☂."],
}
WEATHER_OF_BERN = call("weather", '{"city":"Bern"}')
REPLY_FREE = {GUIDE: [WEATHER_OF_BERN, call("GenerateStructuredOutput", '{"city":"Bern",  "degrees":2.1e1}')]}
REPLY_FORCED = {GUIDE: [WEATHER_OF_BERN, ' {"city":"Bern",  "degrees":2.1e1}}\n</tool_call>', "Go to Bern."]}
REPLY_REQUIRED = {
    GUIDE: [
        'weather", "arguments": {"city":"Bern"}}\n</tool_call>',
        'generate_response", "arguments": {"city":"Bern",  "degrees":2.1e1}}\n</tool_call>',
        "Bern has 21 degrees.",
        "Go to Bern.",
    ]
}
MODEL_FORCED = {GUIDE: [' {"city":"Bern","degrees":21}}\n</tool_call>']}
MODEL_JSON = {GUIDE: ['"city":"Bern","degrees":21}']}
MODEL_JSON_THEN_FORCED = {GUIDE: ['"town":"Bern"}', *MODEL_FORCED[GUIDE]]}
OUT_OF_ROUNDS = {GUIDE: [call("weather", '{"city":"Zürich"}'), call("weather", '{"city": "Bern"}'), "Both are sunny."]}
SUMMARY = (
    '"task_overview":"Weather of two cities.",  "current_state": "Zürich is sunny.", "important_discoveries": "none",'
    ' "next_steps": "Bern", "context_to_preserve": "日本"}'
)
LONG = [call("weather", '{"city":"Zürich"}'), WEATHER_OF_BERN]
COMPRESSED_JSON = {GUIDE: [*LONG, SUMMARY, "Both are sunny."]}
COMPRESSED_FORCED = {GUIDE: [*LONG, " {" + SUMMARY + "}\n</tool_call>", "Both are sunny."]}
SHORT = [call("weather", '{"city":"Zürich"}'), "Zürich is sunny."]
COMPRESSED_WHOLE_FORCED = {GUIDE: [*SHORT, " {" + SUMMARY + "}\n</tool_call>", WEATHER_OF_BERN, "Bern is sunny."]}
TEAM = {
    CHIEF: [
        think("The clerk knows.", call("ask_clerk", '{"question":"Where is Bern?"}')),
        call("ask_clerk", '{"question": "And Basel?"}') + "\n" + call("ask_scout", '{"question":  "Is it open?"}'),
        "In the middle and in the north, and open.",
    ],
    CLERK: [call("weather", '{"city":"Bern"}'), "In the middle.", "In the north."],
    SCOUT: [call("weather", '{"city": "Basel"}'), "It is open."],
}
PIPELINE = {
    CHIEF: [
        think("The clerk knows.", call("TeamAssign", '{"member":"clerk", "prompt":"Where is Bern?"}')),
        call("TeamAssign", '{"member":"clerk", "prompt":"And Basel?"}')
        + "\n"
        + call("TeamAssign", '{"member":"scout",  "prompt":"Is it open?"}'),
        "In the middle and in the north, and open.",
    ],
    CLERK: TEAM[CLERK],
    SCOUT: TEAM[SCOUT],
}
PLAN = {
    GUIDE: [
        call("create_plan", '{"name":"Trip", "description":"A trip", "expected_outcome":"A city", "subtasks":[]}'),
        WEATHER_OF_BERN,
        "Bern is sunny.",
    ]
}
TWO_ATTEMPTS = {SCOUT: [WEATHER_OF_BERN, WEATHER_OF_BERN, "It is open.", "Closed."]}

BOTH = {
    "tools": TOOLS,
    "tools_reasoning_kept": TOOLS,
    "debate": DEBATE,
    "debate_history": DEBATE,
    "out_of_rounds": OUT_OF_ROUNDS,
    "team": TEAM,
    "two_attempts": TWO_ATTEMPTS,
}
"""By the name of the workflow. These are the same in both lines."""
ANSWERS = {
    1: {
        **BOTH,
        "structured_reply": REPLY_REQUIRED,
        "structured_model": MODEL_JSON,
        "structured_model_second_try": MODEL_JSON_THEN_FORCED,
        "compressed": COMPRESSED_JSON,
        "plan": PLAN,
        "mcp": {GUIDE: [think("Far away?", call("distance", '{"start":"Bern",  "end":"Zürich"}')), "It is 95 km."]},
    },
    2: {
        **BOTH,
        "structured_reply": REPLY_FREE,
        "structured_reply_forced": REPLY_FORCED,
        "structured_model": MODEL_FORCED,
        "compressed": COMPRESSED_FORCED,
        "compressed_whole": COMPRESSED_WHOLE_FORCED,
        "team_pipeline": PIPELINE,
        "mcp": {
            GUIDE: [
                think("Far away?", call("mcp__maps__distance", '{"start":"Bern",  "end":"Zürich"}')),
                "It is 95 km.",
            ]
        },
    },
}
