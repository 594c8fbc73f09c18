"""A person compares two answers: given ones, or those that a service has recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astune.errors import ConfigError
from astune.online.agent.client import OnlineClient
from astune.support.concurrency import outside_loop, run_and_leave


class HumanPreferenceCollector:
    """Asks a person which of two answers is better. `ask` is given a text and returns "a" or "b".

    With the `endpoint` of a service, `collect_next` asks about the answers that it has recorded; they are what its page
    `/compare` shows, and the votes of `rater` count there.
    """

    def __init__(
        self,
        ask: Callable[[str], str] = input,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        rater: str = "",
    ) -> None:
        self._ask, self._endpoint, self._token, self._rater = ask, endpoint, token, rater

    def collect(self, question: str, response_a: object, response_b: object) -> dict[str, Any]:
        """A pair for `DPOTrainer`, as the method `dpo` reads it."""
        said = ({"role": "assistant", "content": str(each)} for each in (response_a, response_b))
        return self._choose([{"role": "user", "content": question}], *said)

    def collect_next(self) -> dict[str, Any] | None:
        """Ask about the next two answers of the service, tell it the vote, and return the pair as `collect` does; None
        where there is nothing to compare."""
        if self._endpoint is None or not self._rater:
            raise ConfigError("HumanPreferenceCollector: collect_next() needs endpoint= and rater=")
        with outside_loop():
            return run_and_leave(self._collect_next(self._endpoint))

    async def _collect_next(self, endpoint: str) -> dict[str, Any] | None:
        async with OnlineClient(endpoint, token=self._token) as client:
            found = await client.next_comparison(rater=self._rater)
            if found is None:
                return None
            pair = self._choose(found["messages"], *found["answers"])
            choice = "1" if pair["chosen"] == found["answers"][0] else "2"
            await client.vote(id=found["id"], rater=self._rater, choice=choice)
            return pair | ({"tools": found["tools"]} if found["tools"] else {})

    def _choose(self, messages: list[dict[str, Any]], first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        said = {"a": first, "b": second}
        shown = [str(message.get("content") or message.get("tool_calls") or "") for message in (first, second)]
        asked = "\n\n".join(str(message.get("content") or "") for message in messages)
        better = self._ask(f"{asked}\n\na: {shown[0]}\n\nb: {shown[1]}\n\nWhich is better, a or b? ").strip().lower()
        if better not in said:
            raise ConfigError(f"preference: got {better!r}; expected a or b")
        return {"messages": messages, "chosen": said[better], "rejected": said["ab".replace(better, "")]}
