"""What the client sends, waits for, and leaves behind."""

import asyncio
import signal
import subprocess
import sys
import threading
from email.utils import formatdate
from random import Random

import pytest

from astune.clients import env_requests, env_service
from astune.clients.env_requests import seconds_from_now
from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.config.tasks import EnvServiceConfig
from astune.environment.environment_base import Environment, Instance, Observation
from astune.environment.server import EnvServer
from astune.errors import ConfigError, EnvServiceError
from tests.passing_time import pass_time

CALLS = ("create", "step", "evaluate", "get_info", "release")
INSTANCE = EnvInstance("http://unused", "train/t1/0", "game", "t")
LEFT = {"role": "assistant", "content": "left"}


async def do(client, call):
    if call == "create":
        return await client.create("game", "t", "i-1")
    if call == "step":
        return await client.step(INSTANCE, LEFT, number=0)
    return await {"evaluate": client.evaluate, "get_info": client.info, "release": client.release}[call](INSTANCE)


async def until(condition):
    async def waits():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(waits(), 60)


# -- what is sent -------------------------------------------------------------------------------------------------


async def test_a_call_sends_the_envelope_without_what_is_not_known(service):
    client = EnvServiceClient(f"{service.url}/sent/well/", token="secret")
    await client.create(None, "t", "i-1", {"level": 3})
    assert service.bodies[-1] == {"task_id": "t", "instance_id": "i-1", "params": {"level": 3}}
    assert service.headers[-1]["authorization"] == "Bearer secret"
    assert "idempotency-key" not in service.headers[-1]
    await client.step(EnvInstance(client.url, "a/ä\n1"), LEFT, number=2)
    assert service.bodies[-1] == {"instance_id": "a/ä\n1", "messages": LEFT}
    assert service.headers[-1]["idempotency-key"] == "a/%C3%A4%0A1/2"


def test_no_proxy_leads_to_this_machine(service, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    client = EnvServiceClient(f"{service.url}/proxy/well/", retries=0)
    asyncio.run(client.create(None, "t", "i-1"))
    with pytest.raises(EnvServiceError, match="cannot be reached"):
        asyncio.run(EnvServiceClient("http://far.invalid:1", retries=0, timeout=2).create(None, "t", "i-2"))


async def test_what_is_no_json_is_not_sent(service):
    client = EnvServiceClient(f"{service.url}/unsent/well")
    with pytest.raises(EnvServiceError, match="cannot be sent to an environment service as JSON"):
        await client.step(INSTANCE, {"content": {1, 2}}, number=0)
    assert service.seen["unsent", "step"] == 0


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://127.0.0.1:port", "http://\n"])
async def test_what_is_no_address_is_said_at_once(url):
    with pytest.raises(EnvServiceError, match=r"release: this is no address .*\(1 attempt\)"):
        await EnvServiceClient(url).release(INSTANCE)


def test_a_client_needs_the_address_and_the_token_that_the_config_names(monkeypatch):
    with pytest.raises(ConfigError, match=r"env_service\.env_url: not set"):
        EnvServiceClient.of(EnvServiceConfig())
    named = EnvServiceConfig(env_url="http://127.0.0.1:1", token_variable="GAME_TOKEN")
    monkeypatch.delenv("GAME_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="the environment variable GAME_TOKEN is not set"):
        EnvServiceClient.of(named)
    monkeypatch.setenv("GAME_TOKEN", "two\nlines")
    with pytest.raises(ConfigError, match="GAME_TOKEN holds what cannot be sent in a header"):
        EnvServiceClient.of(named)
    monkeypatch.setenv("GAME_TOKEN", "secret")
    assert EnvServiceClient.of(named).url == "http://127.0.0.1:1"


async def test_a_refused_token_and_a_missing_one_are_told_apart(service):
    for token, text in (("wrong", "it does not accept the token that was sent"), (None, "it asks for a token")):
        with pytest.raises(EnvServiceError, match=rf"{text}: astune\.task_reader\.env_service\.token_variable"):
            await EnvServiceClient(f"{service.url}/{token}/401", token=token).evaluate(INSTANCE)


# -- waiting for room ---------------------------------------------------------------------------------------------


async def test_create_waits_while_the_service_is_full_and_retries_are_for_other_faults(service, short_pauses):
    full = ",".join(["busy_json", "busy_nonsense", "busy", "500", "busy_date", "reset", "busy_json"])
    client = EnvServiceClient(f"{service.url}/full/{full}", create_timeout=20.0, retries=2)
    assert (await client.create("game", "t", "i-1")).reward == 0.5
    assert service.seen["full", "create"] == 8
    stricter = EnvServiceClient(f"{service.url}/fuller/{full}", create_timeout=20.0, retries=1)
    with pytest.raises(EnvServiceError, match=r"the connection broke .*\(6 attempts\)"):
        await stricter.create("game", "t", "i-1")


def test_retry_after_is_seconds_or_a_date_or_nonsense():
    assert (seconds_from_now("7"), seconds_from_now("0.5"), seconds_from_now("9" * 400)) == (7.0, 0.5, float("inf"))
    assert seconds_from_now(formatdate(0, usegmt=True)) == seconds_from_now("Thu, 01 Jan 1970 00:00:00 -0000") == 0.0
    assert seconds_from_now("Fri, 31 Dec 9999 23:59:59 GMT") > 1e9
    nonsense = ("", "soon", "-1", "nan", "1e9", "٣", "Fri, 99 Dec 2026 23:59:59 GMT")
    assert [seconds_from_now(text) for text in nonsense] == [None] * len(nonsense)


def test_pauses_double_up_to_a_limit_and_last_as_long_as_the_service_asks():
    def pauses(asked):
        return [env_service._pause(attempts, asked, Random(attempts)) for attempts in (1, 2, 3, 9, 99999)]

    for given, longest in zip(pauses(None), (0.2, 0.4, 0.8, 5.0, 5.0), strict=True):
        assert longest / 2 <= given <= longest
    assert all(3.0 <= given <= 3.75 for given in pauses(3.0)) and all(given >= 0.2 for given in pauses(0.0))


# -- what is left behind ------------------------------------------------------------------------------------------


async def test_256_calls_at_a_time_share_connections_that_are_kept(service, monkeypatch):
    monkeypatch.setattr(env_requests, "KEEP_ALIVE_SECONDS", 600.0)
    client, before = EnvServiceClient(f"{service.url}/many/well"), service.accepted
    for _ in range(2):
        await asyncio.gather(*(client.step(INSTANCE, {"content": str(n)}, number=n) for n in range(256)))
    await service.is_left_alone()
    assert service.accepted - before <= 256, "the second round takes the connections of the first"


async def test_a_kept_connection_to_one_service_gives_way_to_another_service(service):
    elsewhere = service.url.replace("127.0.0.1", "localhost")
    for url in (service.url, elsewhere, service.url, elsewhere):
        await do(EnvServiceClient(f"{url}/two/well"), "evaluate")
    assert len((await env_requests.connections()).idle) == 1 and {
        headers["host"].partition(":")[0] for headers in service.headers[-4:]
    } == {"127.0.0.1", "localhost"}
    await service.is_left_alone()


async def test_connections_that_are_not_needed_any_more_are_closed(service, monkeypatch):
    client = EnvServiceClient(f"{service.url}/idle/well")
    await asyncio.gather(*(do(client, "evaluate") for _ in range(9)))
    kept = await env_requests.connections()
    assert len(kept.idle) == 9
    monkeypatch.setattr(env_requests, "MOST_IDLE", 4)
    await do(client, "evaluate")
    assert len(kept.idle) == 4
    monkeypatch.setattr(env_requests, "KEEP_ALIVE_SECONDS", -1.0)
    await do(client, "evaluate")
    assert len(kept.idle) == 1
    await service.is_left_alone()


@pytest.mark.parametrize("fault", ["slow", "drip", "stall", "endless", "500"])
async def test_cancellation_passes_through_at_once_and_hangs_up(service, fault, monkeypatch):
    monkeypatch.setattr(env_requests, "MOST_BYTES", 2**40)  # what is endless shall not be too long before
    client = EnvServiceClient(f"{service.url}/cancelled-{fault}/{','.join([fault] * 99)}", retries=99)
    tasks = [asyncio.create_task(do(client, call)) for call in CALLS]
    await until(lambda: all(service.seen[f"cancelled-{fault}", call] for call in CALLS))
    for task in tasks:
        task.cancel()
    given = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    first_step = given[1] if fault == "500" else None  # it is not repeated, and may have failed before
    assert all(isinstance(one, asyncio.CancelledError) or one is first_step for one in given)
    await service.is_left_alone()
    assert (await EnvServiceClient(f"{service.url}/after-{fault}/well").evaluate(INSTANCE)) == 0.25


@pytest.mark.fault(
    "Tools and environments", "calls of an environment are cancelled at any moment", "no connection is left open"
)
async def test_calls_cancelled_at_any_moment_leave_nothing_open(service):
    client, random = EnvServiceClient(f"{service.url}/random/{','.join(['well', 'half', '500'] * 99)}"), Random(0)

    async def cut_short():
        task = asyncio.create_task(do(client, random.choice(CALLS)))
        for _ in range(random.randrange(60)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.wait_for(asyncio.gather(*(cut_short() for _ in range(100))), 60)
    await service.is_left_alone()
    assert await do(EnvServiceClient(f"{service.url}/then/well"), "evaluate") == 0.25


LOOPS = """
import asyncio, gc, sys
from astune.clients.env_requests import _of_loops
from astune.clients.env_service import EnvInstance, EnvServiceClient

url = sys.argv[1]
kept = EnvServiceClient(url)

async def main():
    instance, own = EnvInstance(url, "i-1"), EnvServiceClient(url)
    await asyncio.gather(*(client.evaluate(instance) for client in (kept, own) for _ in range(8)))
    for cut in (kept.evaluate(instance), own.evaluate(instance)):
        asyncio.create_task(cut)        # cancelled by the end of the loop
    await asyncio.sleep(0.002)

for _ in range(3):
    asyncio.run(main())
    gc.collect()
    assert not _of_loops
    assert kept.task_ids("train") == ["a", "b"]
print("done")
"""


def test_a_client_may_be_used_on_loops_one_after_another_which_end_without_a_warning(service):
    code = [sys.executable, "-X", "dev", "-W", "error", "-c", LOOPS, f"{service.url}/loops/well"]
    done = subprocess.run(code, capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n" and "Warning" not in done.stderr and "never" not in done.stderr, done.stderr


# -- our own service ----------------------------------------------------------------------------------------------


class Slow(Environment):
    """Does nothing until it may."""

    env_type = "slow"

    def __init__(self):
        self.created = self.stepped = self.closed = 0
        self.may = threading.Event()

    def task_ids(self, split):
        return ["1"]

    def create(self, task_id, params):
        self.created += 1
        self.may.wait(60)
        return SlowInstance(self)


class SlowInstance(Instance):
    def __init__(self, world):
        self.world = world

    def first_messages(self):
        return [{"role": "user", "content": "Go."}]

    def step(self, action):
        self.world.stepped += 1
        self.world.may.wait(60)
        return Observation(({"role": "user", "content": f"step {self.world.stepped}"},), reward=1.0)

    def evaluate(self):
        return float(self.world.stepped)

    def close(self):
        self.world.closed += 1


@pytest.fixture
def pauses(short_pauses, monkeypatch):
    """An entry for each time that a client waited before it asked again."""
    pauses, pause = [], env_service._pause
    monkeypatch.setattr(env_service, "_pause", lambda *arguments: pauses.append(1) or pause(*arguments))
    return pauses


async def test_our_service_acts_once_for_all_attempts_at_a_call(pauses):
    world = Slow()

    async def given_up_once(call, begun):
        world.may.clear()
        answer = asyncio.create_task(call)
        await until(begun)
        pass_time(61)
        before = len(pauses)
        await until(lambda: len(pauses) > before)
        world.may.set()
        return await answer

    with EnvServer([world]) as server:
        client, instance = EnvServiceClient(server.url, timeout=60), EnvInstance(server.url, "i-1", "slow")
        await given_up_once(client.create(None, "1", "i-1"), lambda: world.created == 1)
        for n in (1, 2):
            state = await given_up_once(client.step(instance, LEFT, number=n - 1), lambda n=n: world.stepped == n)
            assert state.messages[0]["content"] == f"step {n}"
        assert await client.evaluate(instance) == 2.0
        assert (await client.info(instance))["steps"] == 2
        await client.release(instance)
        await client.release(instance)
        assert (world.created, world.stepped, world.closed) == (1, 2, 1)
        with pytest.raises(EnvServiceError, match="does not know instance 'i-1' any more"):
            await client.step(instance, LEFT, number=2)


async def test_create_gets_the_room_that_another_gives_back(pauses):
    world = Slow()
    world.may.set()
    with EnvServer([world], max_instances=1) as server:
        client = EnvServiceClient(server.url)
        await client.create(None, "1", "first")
        second = asyncio.create_task(client.create(None, "1", "second"))
        await until(lambda: len(pauses) > 1)  # it was turned away, and again
        await client.release(EnvInstance(server.url, "first"))
        assert (await second).info["instance_id"] == "second"
        with pytest.raises(EnvServiceError, match=r"create: no instance within 0.1 s .*: the service says full"):
            await EnvServiceClient(server.url, create_timeout=0.1).create(None, "1", "third")


# -- a service that dies ------------------------------------------------------------------------------------------

SLEEPY = """
import sys, time
from astune.environment.environment_base import Environment, Instance
from astune.environment.server import make_app, run_server

class SleepyInstance(Instance):
    def first_messages(self): return [{"role": "user", "content": "Sleep."}]
    def step(self, action):
        print("asleep", flush=True)
        time.sleep(60)
    def evaluate(self): return 0.0

class Sleepy(Environment):
    env_type = "sleepy"
    def task_ids(self, split): return ["1"]
    def create(self, task_id, params): return SleepyInstance()

run_server(make_app([Sleepy()]), "127.0.0.1", int(sys.argv[1]), lambda url: print(url, flush=True))
"""


def start(port):
    code = SLEEPY
    process = subprocess.Popen([sys.executable, "-c", code, str(port)], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


async def test_a_service_that_is_killed_in_a_step_fails_the_step_and_after_a_restart_knows_no_instance(short_pauses):
    process, url = start(0)
    try:
        client = EnvServiceClient(url, retries=1)
        await client.create("sleepy", "1", "i-1")
        instance = EnvInstance(url, "i-1")
        step = asyncio.create_task(client.step(instance, LEFT, number=0))
        await asyncio.to_thread(process.stdout.readline)
        kill(process)
        with pytest.raises(EnvServiceError, match=r"step: the service cannot be reached .*\(2 attempts\)"):
            await step
        process, again = start(int(url.rpartition(":")[2]))
        assert again == url
        with pytest.raises(EnvServiceError, match="does not know instance 'i-1' any more: was it restarted"):
            await client.evaluate(instance)
        await client.release(instance)
    finally:
        kill(process)
