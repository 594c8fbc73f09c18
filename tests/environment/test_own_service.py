"""The service that a run starts itself, as the process that it is."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from astune.clients.env_service import EnvServiceClient
from astune.clients.own_env_service import own_service
from astune.config.tasks import EnvServiceConfig
from astune.errors import ConfigError

HERE = Path(__file__).parent
SERVE = f"{HERE / 'corridor.py'}:Corridor"


def is_up(url):
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def client_of(service):
    return httpx.Client(base_url=service.env_url, headers={"Authorization": f"Bearer {service.own_token}"})


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_service_that_runs_elsewhere_is_not_started():
    config = EnvServiceConfig(env_url="http://127.0.0.1:9")
    with own_service(config) as service:
        assert service is config


def test_the_service_has_its_options_and_ends_with_the_block():
    greeting = 'Go "right": é = [x] -> \\ \n.'
    config = EnvServiceConfig(serve=SERVE, options={"length": 2, "greeting": greeting}, retries=7)
    with own_service(config) as service:
        assert (service.serve, service.options, service.retries) == (None, {}, 7)
        envelope = {"env_type": "corridor", "task_id": "a", "instance_id": "i"}
        http = client_of(service)
        state = http.post("/create", json=envelope).json()["data"]["state"]
        assert state[-1]["content"] == greeting
        step = {**envelope, "messages": {"role": "assistant", "content": "right"}}
        ends = [http.post("/step", json=step).json()["data"]["is_terminated"] for _ in range(2)]
        assert ends == [False, True]
        http.close()
    assert not is_up(service.env_url)


@pytest.mark.fault(
    "Tools and environments", "another user of the machine calls the service that a run has started", "refused: 401"
)
def test_only_the_run_has_the_token_of_its_service():
    with own_service(EnvServiceConfig(serve=SERVE, token_variable=None)) as service:
        assert httpx.post(f"{service.env_url}/get_env_profile", json={}).status_code == 401
        assert EnvServiceClient.of(service).task_ids("train") == ["a", "b"]
        assert EnvServiceClient.of(service.model_copy(update={"retries": 0})).task_ids("train") == ["a", "b"]
        secret = service.own_token
        assert secret not in str(service) and secret not in service.model_dump_json()
        assert secret not in os.environ.values()


@pytest.mark.fault("Tools and environments", "the environment service does not come up", "an error with its last lines")
@pytest.mark.parametrize(
    ("serve", "options", "said"),
    [(SERVE, {"lenght": 2}, "'lenght'"), (f"{HERE / 'corridor.py'}:Coridor", {}, "Coridor")],
)
def test_a_service_that_does_not_come_up_says_why(serve, options, said):
    config = EnvServiceConfig(serve=serve, options=options)
    with pytest.raises(ConfigError, match="serve: the environment service") as caught, own_service(config):
        raise AssertionError("it must not come up")
    assert "did not come up" in str(caught.value) and said in str(caught.value)


def test_a_service_that_dies_is_told_of_with_its_last_lines(caplog):
    with own_service(EnvServiceConfig(serve=SERVE)) as service:
        envelope = {"env_type": "corridor", "task_id": "a", "instance_id": "i"}
        http = client_of(service)
        http.post("/create", json=envelope)
        for word in ("raise", "die"):  # what an environment raises is in the service's log
            body = {**envelope, "messages": {"role": "assistant", "content": word}}
            with contextlib.suppress(httpx.TransportError):
                http.post("/step", json=body)
        http.close()
        until(lambda: caplog.records)
    assert "that this run started has ended (exit code -9)" in caplog.text
    assert "the floor is missing" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.fault(
    "Tools and environments", "a run is killed that had started an environment service", "the service ends with it"
)
def test_the_service_dies_with_a_parent_that_is_killed():
    code = (
        "import sys, time\n"
        "from astune.config.tasks import EnvServiceConfig\n"
        "from astune.clients.own_env_service import own_service\n"
        "with own_service(EnvServiceConfig(serve=sys.argv[1])) as service:\n"
        "    print(service.env_url, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, SERVE], stdout=subprocess.PIPE, text=True) as parent:
        url = parent.stdout.readline().strip()
        assert is_up(url)
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not is_up(url))
