"""A judge that is a script, behind the same API as a model: to try an LLM judge without an account.

    python tutorial/llm_as_judge/judge_server.py

It knows the two criteria of llm_as_judge.yaml, and goes by simple rules: the last number, and the number of words.
"""

import argparse
import json
import re
import threading

from astune.task_judge.llm.fence import read_fences
from astune.testing import ScriptedChatServer


def judge(request: dict) -> str:
    """The reply to one request: a JSON object with a score for each criterion, as the prompt asks for it."""
    shown = dict(read_fences(request["messages"][-1]["content"]))  # task, reference, criteria, answer
    numbers, words = re.findall(r"\d+", shown["answer"]), len(shown["answer"].split())
    right = bool(numbers) and numbers[-1] == shown["reference"]
    scores = [
        {"id": "correct", "reason": f"ends with {numbers[-1] if numbers else 'no number'}", "score": int(right)},
        {"id": "short", "reason": f"{words} words", "score": max(0, 4 - words // 8)},
    ]
    return json.dumps({"criteria": scores})


def main() -> None:
    parser = argparse.ArgumentParser(description="An LLM judge without an LLM.")
    parser.add_argument("--port", type=int, default=8000)
    with ScriptedChatServer(judge, models=["scripted"], usage=True, port=parser.parse_args().port) as server:
        print(f"judging at {server.base_url}, Ctrl-C ends it", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"{len(server.requests)} answers judged")


if __name__ == "__main__":
    main()
