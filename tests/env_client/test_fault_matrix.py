"""Every way in which a service can fail, in every call: what the client makes of it, and how often it asks."""

import asyncio

import pytest

from astune.clients import env_requests
from astune.clients.env_service import EnvInstance, EnvServiceClient, EnvState
from astune.errors import EnvServiceError

CALLS = ("get_env_profile", "create", "step", "evaluate", "get_info", "release")
PASSING = {
    "reset": "the connection broke before the reply was complete",
    "reset_after": "the connection broke before the reply was complete",
    "half": "the connection broke before the reply was complete (RemoteProtocolError",
    "half_head": "the connection broke before the reply was complete (RemoteProtocolError",
    "half_chunk": "the connection broke before the reply was complete (RemoteProtocolError",
    "no_http": "the connection broke before the reply was complete (RemoteProtocolError",
    "page": "answered with status 502: '<html><h1>Bad Gateway</h1></html>'",
    "html": "answered '<html>We are sorry</html>', which is not JSON",
    "500": "answered with status 500: 'Internal Server Error'",
    "500_json": 'answered with status 500: \'{"detail"',
    "busy": "answered with status 503: 'soon'",
    "busy_date": "answered with status 503: 'soon'",
    "busy_nonsense": "answered with status 503: 'soon'",
    "wrong_json": "answered '{\"success\": true, \"data\"', which is not JSON (Expecting ':'",
    "empty": "answered nothing, which is not JSON",
    "gzip": "the reply is compressed, which was not asked for",
    "latin1": "which is not JSON ('utf-8' codec can't decode",
    "deep": "which is not JSON (nested too deeply",
    "surrogate": "which is not JSON ('utf-8' codec can't encode",
    "nan": "which is not JSON (NaN is no number",
}
FINAL = {
    "failed": "the service says environment_failed: the message of environment_failed",
    "busy_json": "the service says full: the message of full",
    "lost": "any more: was it restarted, or idle for longer than its --ttl?",
    "404": "answered with status 404: 'Not Found'; is this the address of an environment service?",
    "401": "it asks for a token: astune.task_reader.env_service.token_variable names",
    "redirect": "the service redirects to http://127.0.0.1:9/elsewhere",
    "list": "answered with status 200: '[1, 2]'",
    "denied": 'answered with status 200: \'{"success": false, "data": "out of order"}\'',
    "shape": "expected ",
    "endless": "the reply is longer than 0 MiB",
}
LATE = ("slow", "drip", "stall", "announced")
RESULTS = {
    "get_env_profile": ["a", "b"],
    "evaluate": 0.25,
    "get_info": {"env_type": "game", "task_id": "t", "steps": 0},
    "release": None,
}


@pytest.fixture
def client_of(service, short_pauses):
    def make(name, script, **options):
        settings = {"timeout": 20.0, "create_timeout": 60.0, "retries": 2, **options}
        return EnvServiceClient(f"{service.url}/{name}/{script}", **settings)

    return make


async def do(client, call, number=0):
    instance = EnvInstance(client.url, "i-1", "game", "t")
    if call == "get_env_profile":
        return await asyncio.to_thread(client.task_ids, "train", "game")
    if call == "create":
        return await client.create("game", "t", "i-1", {"level": 3})
    if call == "step":
        return await client.step(instance, {"role": "assistant", "content": f"step {number}"}, number=number)
    return await {"evaluate": client.evaluate, "get_info": client.info, "release": client.release}[call](instance)


async def outcome(client, call, patience=60.0):
    """What a first call that went well was followed by: the result of a second one, or the text of its error. That has
    so many seconds to wait for room."""
    await do(client, call, 0)
    if call == "create":
        client._create_timeout = patience
    try:
        return await do(client, call, 1)
    except EnvServiceError as error:
        return str(error)


def is_result(call, given):
    return isinstance(given, EnvState) if call in ("create", "step") else given == RESULTS[call]


def acted_at_most_once(service, name):
    assert {count for (acted, _), count in service.acted.items() if acted == name} <= {1}


async def every_call(client_of, service, name, script, patience=60.0):
    """(call, outcome, requests) of each call, made side by side by one client."""
    client = client_of(name, script)
    outcomes = await asyncio.gather(*(outcome(client, call, patience) for call in CALLS))
    await service.is_left_alone()
    acted_at_most_once(service, name)
    return [
        (call, said, service.seen[name, call] - 1, f"{client.url}: {call}: ")
        for call, said in zip(CALLS, outcomes, strict=True)
    ]


def waits_for_room(fault, call):
    return fault.startswith("busy") and call == "create"


@pytest.mark.fault(
    "Tools and environments",
    "an environment service breaks off, answers nonsense or is busy once",
    "the call is sent again and goes well",
)
@pytest.mark.parametrize("fault", PASSING)
async def test_a_fault_that_may_pass_is_worth_another_attempt(client_of, service, fault):
    for call, said, requests, _ in await every_call(client_of, service, f"once-{fault}", f"well,{fault}"):
        assert is_result(call, said) and requests == 2, (call, said)


@pytest.mark.fault(
    "Tools and environments",
    "an environment service keeps failing",
    "an error that names service, call, fault and attempts",
)
@pytest.mark.parametrize("fault", PASSING)
async def test_a_fault_that_stays_is_named_after_the_last_attempt(client_of, service, fault):
    script = ",".join(["well"] + [fault] * 40)
    for call, said, requests, place in await every_call(client_of, service, f"always-{fault}", script, patience=0.1):
        assert is_result(call, said) is False and said.startswith(place) and PASSING[fault] in said, (call, said)
        if waits_for_room(fault, call):
            assert "no instance within 0.1 s (astune.task_reader.env_service.create_timeout)" in said
        else:
            assert said.endswith("(3 attempts)") and requests == 3, (call, said)


@pytest.mark.fault(
    "Tools and environments", "an environment service refuses a call", "an error with its words, after one attempt"
)
@pytest.mark.parametrize("fault", FINAL)
async def test_an_answer_that_says_no_is_not_asked_for_again(client_of, service, fault, monkeypatch):
    monkeypatch.setattr(env_requests, "MOST_BYTES", 100_000)
    script = f"well,{fault}"
    for call, said, requests, place in await every_call(client_of, service, f"final-{fault}", script):
        if waits_for_room(fault, call) or (fault, call) == ("shape", "release"):
            assert is_result(call, said)
        else:
            assert FINAL[fault] in said and said.startswith(place) and said.endswith("(1 attempt)"), (call, said)
            assert requests == 1


@pytest.mark.parametrize("fault", LATE)
async def test_a_service_that_is_late_is_asked_again(client_of, service, fault):
    name = f"late-{fault}"
    client = client_of(name, f"well,{fault}", retries=1000)  # a busy machine may be as late
    await asyncio.gather(*(do(client, call, 0) for call in CALLS))
    client._timeout = 0.25
    results = await asyncio.gather(*(do(client, call, 1) for call in CALLS))
    for call, result in zip(CALLS, results, strict=True):
        assert is_result(call, result) and service.seen[name, call] >= 3, (call, result)
    await service.is_left_alone()
    acted_at_most_once(service, name)


@pytest.mark.fault(
    "Tools and environments",
    "an environment service never answers, or drop by drop",
    "given up in time, with the reason",
)
@pytest.mark.parametrize("fault", LATE)
async def test_a_service_that_stays_late_is_given_up(client_of, service, fault):
    name = f"later-{fault}"
    client = client_of(name, ",".join([fault] * 40), timeout=0.1, retries=1)
    said = await asyncio.gather(*(do(client, call) for call in CALLS), return_exceptions=True)
    for call, error in zip(CALLS, said, strict=True):
        attempts = 1 if call == "step" else 2  # nothing was heard of this service yet, so a step is not repeated
        with pytest.raises(EnvServiceError, match=rf": {call}: no answer within 0.1 s.*\({attempts} attempts?\)"):
            raise error
        assert service.seen[name, call] <= attempts
    await service.is_left_alone()
    acted_at_most_once(service, name)


@pytest.mark.fault(
    "Tools and environments",
    "the reply to a step is lost",
    "the step is asked for again only where the service keeps replies; it never acts twice",
)
@pytest.mark.parametrize("fault", ["reset", "reset_after", "half", "page", "500", "wrong_json", "busy"])
async def test_a_step_is_never_repeated_at_a_service_that_does_not_keep_its_reply(client_of, service, fault):
    name = f"plain-{fault}"
    client = client_of(name, f"well,{fault}")
    said = await outcome(client, "step")
    assert service.seen[name, "step"] == 2 and "not repeated, as the service does not say" in said
    assert is_result("evaluate", await outcome(client, "evaluate")) and service.seen[name, "evaluate"] == 3
    await service.is_left_alone()
    acted_at_most_once(service, name)


async def test_any_reply_of_the_service_says_that_steps_may_be_repeated(client_of, service):
    client = client_of("heard", "well,reset_after")
    await do(client, "evaluate")
    client_that_knows_nothing = client_of("unheard", "reset_after")
    with pytest.raises(EnvServiceError, match=r"not repeated.*\(1 attempt\)"):
        await do(client_that_knows_nothing, "step")
    assert is_result("step", await outcome(client, "step"))
