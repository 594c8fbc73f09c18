"""LLM judges on a scripted server, which tells good answers from bad by the number behind "quality"."""

import json
import re

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.llm.fence import read_fences
from astune.types import Episode, StopReason, Task, Turn, WorkflowOutput


def quality(text: str) -> float:
    found = re.search(r"quality (-?\d+)", text)
    return float(found[1]) if found else 0.0


def fences(body) -> list[tuple[str, str]]:
    return read_fences(body["messages"][1]["content"])


def reply(body, judged=quality) -> str:
    """What an honest judge replies to a question in any mode; scores are cut to the scale."""
    first = body["messages"][0]["content"].splitlines()[0]
    blocks = fences(body)
    answers = {name.removeprefix("answer_"): judged(text) for name, text in blocks if name.startswith("answer")}
    if first == "Judge by criteria.":
        return scores(dict(blocks)["criteria"], answers["answer"])
    if first == "Judge which answer is better.":
        better = "tie" if answers["A"] == answers["B"] else max(answers, key=answers.get)
        return json.dumps({"reason": "by quality", "better": better})
    levels = [[label for label in answers if answers[label] == level] for level in sorted(set(answers.values()))]
    return json.dumps({"reason": "by quality", "ranking": levels[::-1]})


def scores(criteria: str, value: float) -> str:
    rows = []
    for line in criteria.splitlines():
        name, scale, *_ = line.split(" | ")
        low, high = (int(part) for part in re.split(r" to |(?<=\d)-", scale))
        rows.append({"id": name, "reason": f"quality {value:g}", "score": int(min(max(value, low), high))})
    return json.dumps({"criteria": rows})


def config(*servers, cache=None, **llm) -> TaskJudgeConfig:
    models = [{"base_url": server.base_url, "model": f"m{i}", "max_retries": 0} for i, server in enumerate(servers)]
    return TaskJudgeConfig(llm={"models": models, "cache": cache, **llm})


def task(reference=None, query="How do I reset it?") -> Task:
    return Task("t", query, answer=reference)


def attempts(task, *answers) -> list[Episode]:
    return [attempt(task, answer, i) for i, answer in enumerate(answers)]


def attempt(task, answer, i=0, stop=StopReason.COMPLETED, turns=()) -> Episode:
    output = WorkflowOutput(answer=answer) if stop is StopReason.COMPLETED else None
    return Episode(f"e{i}", task, tuple(turns), (), stop, output)


def turn(messages, response, *, agent="main", call=0, finish="stop") -> Turn:
    said = {"role": "assistant", **response}
    return Turn(agent, (1,), (2,), (0.0,), 0, finish, messages=tuple(messages), response=said, call=call)
