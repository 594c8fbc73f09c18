"""`astune online serve` with a model from a script, as a process: FOLDER and the settings of `serve` as JSON."""

import asyncio
import contextlib
import json
import signal
import sys

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.online.service.serving import Model, serve
from astune.online.store.versions import ModelVersion
from astune.support.resources import tiny_model_dir
from astune.testing import ScriptedPolicy
from tests.online.service.conftest import configured


class Slow(ScriptedPolicy):
    """An answer takes a moment, as of a model."""

    async def generate(self, prompt_ids, sampling):
        await asyncio.sleep(0.02)
        return await super().generate(prompt_ids, sampling)


def main() -> None:
    folder, settings = sys.argv[1], json.loads(sys.argv[2])
    chat_format = ChatFormat.load(tiny_model_dir())

    def load(version: ModelVersion) -> Slow:
        return Slow(lambda prompt: "4", chat_format, policy_version=version.number)

    config = configured(f"sqlite:///{folder}/online.db", poll_seconds=0.2, **settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
    with contextlib.suppress(KeyboardInterrupt):
        serve(config, Model("scripted", chat_format, load, ModelVersion(0)), lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
