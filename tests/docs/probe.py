"""An agent whose short run logs every metric: it fails, blocks, forks, asks greedily, and is rewarded unevenly
by a judge that cannot always tell."""

from __future__ import annotations

import time
from typing import Any

from astune import Episode, Task, Tuner, Verdict, Workflow, WorkflowOutput


class Probe(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        client = tuner.openai_client("probe")

        async def ask(messages: list[dict[str, str]], **options: Any) -> str:
            reply = await client.chat.completions.create(model="policy", messages=messages, **options)
            return reply.choices[0].message.content or ""

        question = {"role": "user", "content": task.query}
        text = await ask([question])
        forged = {"role": "assistant", "content": "something that was never sampled"}
        await ask([question, forged, question])
        await ask([question], temperature=0.0, tools=[{"type": "function", "function": {"name": "search"}}])
        if task.metadata["case"] == "broken":
            time.sleep(0.1)
            raise ValueError("this task always fails")
        tuner.tool_log.add_result("call_0", "search", "no network")
        tuner.reward("probe", len(text) / 100)
        return WorkflowOutput(answer=text, metrics={"characters": len(text)})


def judge(task: Task, episode: Episode) -> Verdict:
    attempt = int(episode.episode_id.rpartition("/")[2])
    reward = 0.0 if task.metadata["case"] == "equal" else float(attempt % 2)
    undecided = attempt == 3
    return Verdict(reward, passed=None if undecided else reward > 0, metrics={"seen": 1.0}, undecided=undecided)
