"""Whatever goes wrong on the way, in whatever order: no step acts twice, and no call goes on for ever."""

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.clients.env_service import EnvInstance, EnvServiceClient, EnvState
from astune.errors import EnvServiceError

FAULTS = ["well", "reset", "reset_after", "half", "half_head", "wrong_json", "empty", "gzip", "page", "500", "failed"]
FAULTS += ["busy", "busy_json", "lost", "slow", "stall"]
STEPS, RETRIES, TIMEOUT, CREATE_TIMEOUT = 3, 2, 0.05, 0.1
SPARE_SECONDS = 60.0
"""For a machine that is busy: a call that hangs would take for ever."""

names = itertools.count()


async def episode(client):
    """What became of each call."""
    instance = EnvInstance(client.url, "i-1")
    steps = (client.step(instance, {"content": f"step {n}"}, number=n) for n in range(STEPS))
    made = []
    for call in (client.create("game", "t", "i-1"), *steps, client.evaluate(instance), client.release(instance)):
        try:
            made.append(await asyncio.wait_for(call, CREATE_TIMEOUT + (RETRIES + 1) * TIMEOUT + SPARE_SECONDS))
        except EnvServiceError as error:
            made.append(error)
    return made


@pytest.mark.fault(
    "Tools and environments",
    "the reply to a step is lost",
    "the step is asked for again only where the service keeps replies; it never acts twice",
)
@pytest.mark.parametrize("kind", ["keeps", "plain"])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=9))
def test_no_sequence_of_faults_makes_a_step_act_twice(service, short_pauses, kind, faults):
    name = f"{kind}-{next(names)}"
    client = EnvServiceClient(
        f"{service.url}/{name}/{','.join(faults)}", timeout=TIMEOUT, create_timeout=CREATE_TIMEOUT, retries=RETRIES
    )
    made = asyncio.run(episode(client))
    for number, state in enumerate(made[1 : 1 + STEPS]):
        acted = service.acted[name, f"step {number}"]
        assert acted == 1 if isinstance(state, EnvState) else acted <= 1
