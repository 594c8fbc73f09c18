"""The workflow of an agent that is a program of its own: start it with an address, wait, read what it prints."""

import asyncio
import sys
from pathlib import Path

from astune import Task, Tuner, Workflow, WorkflowOutput

AGENT = Path(__file__).with_name("agent.py")


class CommandLineAgent(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(AGENT),
            tuner.base_url("solver"),
            task.query,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            printed, errors = await process.communicate()
        finally:
            if process.returncode is None:  # the episode was stopped: the program must not outlive it
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(f"{AGENT.name} ended with {process.returncode}: {errors.decode()[-500:]}")
        return WorkflowOutput(answer=printed.decode().strip())
