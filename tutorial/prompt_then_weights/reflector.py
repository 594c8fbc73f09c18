"""Plays the language model that improves the prompt, by rules, so that this runs without an account.

It sees what any reflector sees: attempts at a few tasks, what they were worth and why. Where most wrong ones never
asked the calculator it says to, else it says to take more care; but some of its replies are any sentence that comes to
mind. With `astune.prompts.reflection.models` in the place of `reflector` a chat API does it.
"""

import random

FOR_TOOLS = ("Use the calculator.", "Use the calculator for every step.", "Never guess: ask the calculator.")
FOR_STEPS = ("Do not stop before the last step.", "Read the whole question.", "Look which calculation is asked for.")
OTHERS = ("Be friendly.", "Answer at once.", "Many people read this.", "Keep it short.", "Say your first guess.")


def reflect(request) -> str:
    wrong = [one for result in request.results for one in result.attempts if not one.passed]
    luck = random.Random(f"{request.text} {[one.transcript for one in wrong]} {request.wrong}")
    called = sum("calculator" in one.transcript for one in wrong)
    helpful = FOR_TOOLS if called < len(wrong) / 2 else FOR_STEPS
    new = [sentence for sentence in (*helpful, *OTHERS) if sentence not in request.text]
    guided = [sentence for sentence in new if sentence in helpful and luck.random() < 0.6]
    return request.text.replace("End with:", f"{luck.choice(guided or new)} End with:")
